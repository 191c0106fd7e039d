"use strict";
// The page itself: its controls, and when what is drawn anew.

const PLOTS = {
  "plot-sfo": { title: "SFO complexity K·b against batch size", draw: (w, p) => againstBatchSize("sfo", w, p) },
  "plot-steps": { title: "Steps K against batch size", draw: (w, p) => againstBatchSize("steps", w, p) },
  "plot-seconds": { title: secondsTitle, draw: (w, p) => againstBatchSize("seconds", w, p) },
  "plot-loss": { title: lossTitle, draw: losses, tools: lossTools },
};

const FEWEST_TO_FILTER = 4; // variants

function showPlot(id) {
  const { title, draw, tools } = PLOTS[id];
  const figure = document.getElementById(id);
  const style = getComputedStyle(figure);
  const width = figure.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const pointed = state.pointed.get(id);
  const made = draw(Math.max(240, width), pointed);
  // The same element every time, so that a screen reader hears it change.
  const output = figure.querySelector("output") ?? element("output", { ariaLive: "polite" });
  const run = made && pointed !== undefined ? made.runs[pointed % made.runs.length] : null;
  output.textContent = run ? describe(run).replaceAll("\n", "; ") : "";
  figure.dataset.marks = made ? made.runs.length : 0;
  [...figure.children].filter((child) => child !== output).forEach((child) => child.remove());
  figure.prepend(
    ...(tools ? [tools()] : []),
    element("h3", { textContent: typeof title === "function" ? title() : title }),
    made ? made.plot : element("p", { className: "none", textContent: "Nothing to show for this choice." }),
  );
  if (!output.isConnected) figure.append(output);
}

function secondsTitle() {
  const caveat = study.seconds_caveat ? ` (${study.seconds_caveat})` : "";
  return `Seconds of training against batch size${caveat}`;
}

function lossTitle() {
  const sizes = study.runs.filter((run) => run.variant === lossVariant()).map((run) => run.batch_size);
  const [least, most] = d3.extent(sizes);
  const range = least === most ? `b = ${least}` : `b = ${least} (faint) to ${most} (bold)`;
  return `Loss by rule ${state.rule}, ${range}`;
}

function lossTools() {
  const variant = options(study.variants.map((v, i) => [i, v.name]), lossVariant(), (value) => {
    state.lossVariant = Number(value);
  });
  variant.id = "loss-variant";
  variant.ariaLabel = "Optimizer whose losses are shown";
  const by = options([["sfo", "by SFO"], ["steps", "by steps"], ["seconds", "by seconds"]], state.lossBy, (value) => {
    state.lossBy = value;
  });
  by.id = "loss-by";
  by.ariaLabel = "What the losses are shown against";
  return element("div", { className: "tools" }, variant, by);
}

function options(pairs, selected, choose) {
  const select = element("select", {}, ...pairs.map(([value, text]) =>
    element("option", { value, textContent: text, selected: value === selected })));
  select.addEventListener("change", () => {
    choose(select.value);
    showPlot("plot-loss");
    document.getElementById(select.id).focus();
  });
  return select;
}

const MOST_UNFOLDED = 4; // of more answers only the first lines are shown, until they are opened

/** Variants without an answer are folded: there may be many of them. So are many of one batch size each. */
function showAnswers() {
  const shownOnes = chosen().says.filter((says) => !isHidden(variantOf(says)));
  const single = shownOnes.filter((says) => says.least !== null && !says.several);
  const without = shownOnes.filter((says) => says.least === null || (single.length > MOST_UNFOLDED && !says.several));
  const answered = shownOnes.filter((says) => !without.includes(says));
  const item = (says) => {
    const [first, ...others] = says.lines;
    const heading = element("strong", { textContent: first });
    const more = others.length ? element("ul", {}, ...others.map((line) => element("li", { textContent: line }))) : null;
    const folded = answered.length > MOST_UNFOLDED && more;
    const made = element("li", {},
      ...(folded ? [element("details", {}, element("summary", {}, heading), more)] : [heading, more]));
    made.style.setProperty("--color", color(variantOf(says)));
    return made;
  };
  document.getElementById("answers").replaceChildren(...answered.map(item));
  const folded = document.getElementById("unanswered");
  folded.hidden = !without.length;
  folded.querySelector("summary").textContent = unanswered(without.map((says) => says.variant));
  folded.querySelector("ul").replaceChildren(...without.map(item));
  const over = state.rule === "epoch" ? "" : ` over ${number(study.window)} samples`;
  const count = `${number(study.runs.length)} ${study.runs.length === 1 ? "run" : "runs"}`;
  document.getElementById("asked").textContent =
    `loss ≤ ${state.threshold} by rule ${state.rule}${over}, ${count}`;
}

function unanswered(names) {
  const some = names.slice(0, 5).join(", ") + (names.length > 5 ? ", …" : "");
  return `${names.length} ${names.length === 1 ? "variant" : "variants"} without an answer: ${some}`;
}

function showLegend() {
  const listed = d3.range(study.variants.length).filter(matches);
  const buttons = listed.map((i) => {
    const variant = study.variants[i];
    const button = element("button", { type: "button", ariaPressed: String(!state.hidden.has(i)) },
      legendSymbol(i), element("span", { textContent: variant.short, title: variant.name }));
    button.style.setProperty("--color", color(i));
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => liftOut(i));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => liftOut(null));
    button.addEventListener("click", () => {
      if (!state.hidden.delete(i)) state.hidden.add(i);
      showLegend();
      showChoice();
      document.querySelectorAll("#legend button")[listed.indexOf(i)].focus();
    });
    return button;
  });
  document.getElementById("legend").replaceChildren(...buttons);
}

/** Fade all other variants of crowded plots; null: none. */
function liftOut(variant) {
  document.querySelectorAll(".plots g.lifted").forEach((mark) => mark.classList.remove("lifted"));
  document.querySelectorAll(`.plots g.variant-${variant}`).forEach((mark) => mark.classList.add("lifted"));
}

/** As the variant's points are drawn. */
function legendSymbol(variant) {
  const name = symbol(variant);
  const kind = d3[`symbol${name[0].toUpperCase()}${name.slice(1)}`];
  const svg = d3.create("svg").attr("viewBox", "-8 -8 16 16").attr("aria-hidden", "true");
  svg.append("path").attr("d", d3.symbol(kind, 90)());
  return svg.node();
}

function showControls() {
  const rules = [...new Set(study.choices.map((choice) => choice.rule))];
  const rule = document.getElementById("rule");
  rule.replaceChildren(...rules.map((name) => element("option", { value: name, textContent: name, selected: name === state.rule })));
  const thresholds = study.choices.filter((c) => c.rule === state.rule).map((c) => c.threshold).sort(d3.descending);
  const threshold = document.getElementById("threshold");
  threshold.replaceChildren(...thresholds.map((value) => element("option", { value, textContent: String(value), selected: value === state.threshold })));
  rule.onchange = () => { state.rule = rule.value; showChoice(); };
  threshold.onchange = () => { state.threshold = Number(threshold.value); showChoice(); };
  const all = document.getElementById("all-forms");
  all.onchange = () => { state.allForms = all.checked; showPlots(); };
  const variants = document.getElementById("variants");
  document.getElementById("variants-label").hidden = study.variants.length < FEWEST_TO_FILTER;
  variants.oninput = () => { state.variants = variants.value; showLegend(); showChoice(); };
  const filter = document.getElementById("filter");
  filter.oninput = () => { state.filter = filter.value; showRuns(); };
  document.getElementById("controls").onsubmit = (event) => event.preventDefault();
}

function showTheme() {
  const button = document.getElementById("theme");
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ?? (preferred.matches ? "dark" : "light")) === "dark";
  const updateLabel = () => { button.textContent = dark() ? "Light mode" : "Dark mode"; };
  button.onclick = () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; updateLabel(); };
  preferred.onchange = updateLabel;
  updateLabel();
}

/** Tells which tables are wider than the page, and scroll. */
function markWideTables() {
  for (const place of document.querySelectorAll(".scroll")) {
    place.classList.toggle("wide", place.scrollWidth > place.clientWidth + 2);
  }
}

const showPlots = () => Object.keys(PLOTS).forEach(showPlot);

function showChoice() {
  state.pointed.clear();
  showAnswers();
  showPlots();
  showForms();
  showRuns();
  markWideTables();
}

for (const id of Object.keys(PLOTS)) {
  document.getElementById(id).addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || event.target.id !== id) return;
    event.preventDefault();
    const count = Number(document.getElementById(id).dataset.marks);
    if (!count) return;
    const before = state.pointed.get(id) ?? (step > 0 ? -1 : 0);
    state.pointed.set(id, (before + step + count) % count);
    showPlot(id);
  });
}

document.querySelectorAll("details").forEach((folded) => folded.addEventListener("toggle", markWideTables));
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((folded) => { folded.open = true; });
});
showTheme();
showControls();
showLegend();
showPaper();
showRan();
showChoice();
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) { width = innerWidth; showPlots(); markWideTables(); }
});
