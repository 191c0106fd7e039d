"use strict";
// What is shown: the study, and the reader's choice of rule, threshold, optimizers and order.

const study = JSON.parse(document.getElementById("content").textContent);
const state = {
  rule: study.asked.rule,
  threshold: study.asked.threshold,
  hidden: new Set(),
  allForms: false,
  lossVariant: 0,
  lossBy: "sfo",
  sort: { key: null, descending: false },
  filter: "", // of the table of runs
  variants: "", // of the variants
  pointed: new Map(), // by plot: which of its marks the arrow keys are at
};
// Of the variants of one optimizer; a star is the least SFO, a diamond the fitted b*.
const SYMBOLS = ["circle", "square", "triangle", "triangle2", "cross", "wye", "square2", "asterisk"];
const MISSED = ["exhausted", "diverged"];

// In the dark a colour is lightened, so that the same hue stays readable; black becomes gray.
study.variants.forEach(({ color }, i) => {
  const light = d3.hcl(color);
  light.l = 60 + 0.4 * light.l;
  document.documentElement.style.setProperty(`--variant-${i}`, `light-dark(${color}, ${light.formatHex()})`);
});
const color = (variant) => `var(--variant-${variant})`;

const chosen = () =>
  study.choices.find((c) => c.rule === state.rule && c.threshold === state.threshold);

/** Every run with its answer to the chosen rule and threshold. */
function answered() {
  const { answers } = chosen();
  return study.runs.map((run, i) => ({
    ...run,
    ...Object.fromEntries(study.answer_keys.map((key, j) => [key, answers[i][j]])),
    name: study.variants[run.variant].name,
  }));
}

/** Whether a variant has all the words that are asked for, in any order. */
function matches(variant) {
  const name = study.variants[variant].name.toLowerCase();
  return state.variants.toLowerCase().split(/\s+/).every((word) => name.includes(word));
}
const isHidden = (variant) => state.hidden.has(variant) || !matches(variant);
const variantOf = (says) => study.variants.findIndex((v) => v.name === says.variant);

const shown = () => answered().filter((run) => !isHidden(run.variant));

/** One point a variant and batch size: the median of the runs that reached, as in the figures. */
function points(runs, key) {
  const groups = d3.group(runs, (run) => run.variant, (run) => run.batch_size);
  return [...groups].flatMap(([variant, sizes]) =>
    [...sizes].flatMap(([batch_size, own]) => {
      const reached = own.filter((run) => run.status === "reached");
      if (!reached.length) return [];
      const values = reached.map((run) => run[key]);
      const sliced = own.some((run) => run.sliced);
      return [{ variant, batch_size, sliced, value: d3.median(values), low: d3.min(values), high: d3.max(values) }];
    }),
  );
}

const number = (value, digits = 4) =>
  value === null || value === undefined
    ? "–"
    : Number.isInteger(value)
      ? value.toLocaleString("en")
      : Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits });

const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(2)} %`);

const seedOf = (run) => (run.seed === null ? "unseeded" : `seed ${run.seed}`);

/** A run in words, for hovering and for the arrow keys. */
function describe(run) {
  const head = `${run.name}, b = ${run.batch_size}, ${seedOf(run)}`;
  if (run.status === "reached") {
    return [
      head,
      `K = ${number(run.steps)} steps, SFO ${number(run.sfo)}`,
      `${number(run.seconds, 3)} s, accuracy ${percent(run.accuracy)}`,
    ].join("\n");
  }
  const why = run.status === null ? "stopped too early to answer this threshold" : run.status;
  return [head, `${why} after ${number(run.steps_run)} steps`, `loss ${number(run.loss, 3)}`].join("\n");
}
