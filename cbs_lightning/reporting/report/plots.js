"use strict";
// Plots of the chosen answers. Everything is drawn anew when a choice or the width changes.

const symbol = (variant) => SYMBOLS[study.variants[variant].mark % SYMBOLS.length];
const DASHES = { nested: "10 3", iiduka: "6 3", mccandlish: "2 3" };
const RANGE_MARGIN = 1.15; // by which a range is drawn beyond its batch sizes, to be seen if it is one
/** A batch is at most the whole data set. */
const whole = (b) => Math.min(b, study.data_size);
const QUANTITIES = {
  sfo: { title: "SFO complexity K·b", perStep: whole, mark: "least", cost: (run) => run.steps_run * run.effective_batch_size },
  steps: { title: "Steps K", perStep: () => 1, mark: "least", cost: (run) => run.steps_run },
  seconds: { title: "Seconds of training", perStep: null, mark: "fastest", cost: (run) => run.seconds },
};

const MOST_BANDS = 6; // variants; with more, what is fitted and the ranges would cover the runs
const MOST_ROWS = 6; // of variants with unreached runs; the rest share the last

const superscript = (n) => [...String(n)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
const powerOfTwo = (value) => `2${superscript(Math.round(Math.log2(value)))}`;

/** Seconds are plain numbers, as people say them; so is what spans too few octaves to read off. */
function ticks(domain, perStep) {
  const octaves = domain ? powers(domain, 9) : [];
  if (domain && !perStep) return { ticks: roundNumbers(domain), tickFormat: "~g" };
  if (domain && octaves.length < 3) return { ticks: roundNumbers(domain), tickFormat: "~s" };
  return { base: 2, ticks: octaves, tickFormat: powerOfTwo };
}

const DIGITS = [[1, 1.5, 2, 3, 4, 5, 6, 8], [1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]];

/** As many as have room: a label takes up to an eighth of the axis. */
function roundNumbers([low, high]) {
  const within = (digits) =>
    d3.range(-6, 12).flatMap((e) => digits.map((d) => d * 10 ** e)).filter((x) => low <= x && x <= high);
  const apart = (found) => d3.min(d3.pairs(found.map(Math.log)), ([a, b]) => b - a) ?? Infinity;
  const found = DIGITS.map(within);
  return found.find((some) => apart(some) >= Math.log(high / low) / 8) ?? found.at(-1);
}

/** Powers of two within the domain, at most so many. */
function powers([low, high], most) {
  const found = d3.range(Math.ceil(Math.log2(low)), Math.floor(Math.log2(high)) + 1);
  const every = Math.ceil(found.length / most);
  return found.filter((_, i) => i % every === 0).map((e) => 2 ** e);
}

const common = (width, title) => ({
  width,
  height: Math.max(260, Math.min(380, width * 0.68)),
  marginLeft: 52,
  marginRight: 16,
  marginBottom: 38,
  style: { fontSize: "12px", background: "transparent", color: "var(--ink)" },
  ariaLabel: title,
});

const tip = (runs, at, maxRadius = 30) =>
  Plot.tip(runs, Plot.pointer({ ...at, title: describe, maxRadius, lineHeight: 1.3, fill: "var(--panel)", stroke: "var(--line)" }));

/** Where the marks of a row of unreached runs are, in pixels from the top of the frame. */
const above = (row) => -12 - 12 * row;

/** One quantity against the batch size; returns the plot and the runs that can be pointed at. */
function againstBatchSize(key, width, pointed) {
  const { title, perStep, mark, cost } = QUANTITIES[key];
  const runs = shown();
  const reached = runs.filter((run) => run.status === "reached" && run[key] > 0);
  const missed = runs.filter((run) => MISSED.includes(run.status));
  // Given up by a search: what they cost by then is a lower bound.
  const abandoned = runs.filter((run) => run.status === "abandoned").map((run) => ({ ...run, value: cost(run) }));
  if (!reached.length && !missed.length && !abandoned.length) return null;
  const sizes = answered().map((run) => run.batch_size);
  const rows = [...new Set(missed.map((run) => run.variant))];
  const rowOf = (variant) => Math.min(rows.indexOf(variant), MOST_ROWS - 1);
  const height = Math.min(rows.length, MOST_ROWS);
  const marks = [];
  const ends = []; // of curves, where their names are written
  const compared = key !== "seconds" || !study.seconds_caveat; // else points alone, and none the best
  const crowded = new Set(reached.map((run) => run.variant)).size > MOST_BANDS;
  for (const says of chosen().says) {
    const variant = variantOf(says);
    if (isHidden(variant)) continue;
    const paint = color(variant);
    if (perStep && !crowded) marks.push(...cheapRanges(says, paint), ...fitted(says, perStep, paint));
    const own = points(runs, key).filter((p) => p.variant === variant);
    const className = crowded ? `variant-${variant}` : "variant";
    const joined = compared && (!perStep || !says.curve || crowded);
    if (joined) marks.push(Plot.line(own, { x: "batch_size", y: "value", stroke: paint, strokeWidth: 1.5, className }));
    marks.push(
      Plot.link(own.filter((p) => p.high > p.low), { x: "batch_size", y1: "low", y2: "high", stroke: paint, className }),
      Plot.dot(own, {
        x: "batch_size", y: "value", r: crowded ? 3 : 4.5, symbol: symbol(variant), className,
        stroke: paint, fill: (p) => (p.sliced ? "var(--paper)" : paint), strokeWidth: 1.5,
      }),
    );
    const best = own.filter((p) => compared && p.batch_size === says[mark]);
    marks.push(Plot.dot(best, {
      x: "batch_size", y: "value", r: crowded ? 7 : 9, symbol: "star", fill: paint, stroke: "var(--paper)", className,
    }));
    if (crowded && own.length) ends.push(d3.greatest(own, (p) => p.batch_size));
    if (perStep && best.length && says.least && !crowded) {
      const sfo = best[0].value * (whole(says.least) / perStep(says.least));
      const tried = [...new Set(runs.filter((run) => run.variant === variant).map((run) => run.batch_size))];
      const line = tried.sort(d3.ascending).map((b) => ({ b, y: (sfo / whole(b)) * perStep(b) }));
      marks.push(Plot.line(line, { x: "b", y: "y", stroke: paint, strokeDasharray: "5 4", strokeOpacity: 0.8, clip: true }));
    }
  }
  const seeds = reached.map((run) => ({ ...run, value: run[key] }));
  marks.push(
    Plot.dot(seeds, { x: "batch_size", y: "value", r: 2, fill: (run) => color(run.variant), fillOpacity: 0.6, className: "run" }),
    tip(seeds, { x: "batch_size", y: "value" }),
  );
  marks.push(
    Plot.vector(abandoned, {
      x: "batch_size", y: "value", length: 16, anchor: "start", stroke: (run) => color(run.variant), strokeWidth: 1.5, className: "abandoned",
    }),
    tip(abandoned, { x: "batch_size", y: "value" }),
  );
  rows.forEach((variant) => {
    const own = missed.filter((run) => run.variant === variant);
    const place = { x: "batch_size", frameAnchor: "top", dy: above(height - 1 - rowOf(variant)) };
    marks.push(
      Plot.dot(own, { ...place, symbol: "times", r: 4, stroke: color(variant), strokeWidth: 2 }),
      tip(own, { ...place, anchor: "top" }, 8),
    );
  });
  const all = [...seeds, ...abandoned, ...missed];
  const at = pointed === undefined ? null : all[pointed % all.length];
  if (at) {
    const top = { x: "batch_size", frameAnchor: "top", dy: above(height - 1 - rowOf(at.variant)) };
    const place = at.value ? { x: "batch_size", y: "value" } : top;
    marks.push(Plot.dot([at], { ...place, r: 8, stroke: "var(--ink)", strokeWidth: 2 }));
  }
  const across = padded(d3.extent(sizes));
  const drawn = [...seeds, ...abandoned];
  const domain = padded(drawn.length ? d3.extent(drawn, (run) => run.value) : [1, 2]);
  const options = {
    ...common(width, `${title} against batch size`),
    marginTop: 20 - above(height),
    x: { type: "log", base: 2, label: "Batch size b", domain: across, ticks: powers(across, width / 42), tickFormat: powerOfTwo, grid: true, tickSize: 0 },
    y: { type: "log", label: null, domain, grid: true, tickSize: 0, ...ticks(drawn.length ? domain : null, perStep) },
    color: { type: "identity" },
    marks: [
      rows.length ? Plot.text(["not reached"], { frameAnchor: "top-left", dy: above(height) - 6, fill: "var(--faint)" }) : null,
      ...marks,
    ],
  };
  return { plot: Plot.plot(ends.length ? withNames(options, ends) : options), runs: all };
}

const NAME_HEIGHT = 13; // pixels
const CHARACTER = 6.2;

/** The plot with the names of its curves at their right, beside their ends and apart from each other. */
function withNames(options, ends) {
  const longest = d3.max(ends, (end) => study.variants[end.variant].short.length);
  const height = Math.max(options.height, options.marginTop + options.marginBottom + NAME_HEIGHT * ends.length);
  const roomy = { ...options, height, marginRight: 20 + CHARACTER * longest };
  const plain = Plot.plot(roomy); // tells where its scales put things
  const [x, y] = [plain.scale("x"), plain.scale("y")];
  const wanted = d3.sort(ends, (end) => y.apply(end.value));
  const places = spreadOut(wanted.map((end) => y.apply(end.value)), NAME_HEIGHT, height - options.marginBottom);
  const names = wanted.flatMap((end, i) => {
    const [paint, place] = [color(end.variant), y.invert(places[i])];
    const own = [{ ...end, right: x.domain[1], place, short: study.variants[end.variant].short }];
    const className = `variant-${end.variant}`;
    const leader = { x1: "batch_size", y1: "value", x2: "right", y2: "place", stroke: paint, strokeOpacity: 0.5 };
    const text = { x: "right", y: "place", text: "short", textAnchor: "start", dx: 4, fill: paint, fontSize: 11 };
    return [Plot.link(own, { ...leader, className }), Plot.text(own, { ...text, className, clip: false })];
  });
  return { ...roomy, marks: [...options.marks, ...names] };
}

/** Places at least `gap` apart and above `lowest`, close to those wanted, which are sorted. */
function spreadOut(wanted, gap, lowest) {
  const found = [];
  for (const place of wanted) found.push(Math.max(place, found.length ? found.at(-1) + gap : place));
  found.reduceRight((limit, place, i) => (found[i] = Math.min(place, limit)) - gap, lowest - gap / 2);
  return found;
}

const padded = ([low, high]) => [low / 1.25, high * 1.25];

/** The batch sizes that cost little more than the least, shaded over the height of the plot. */
function cheapRanges({ ranges }, paint) {
  return ranges.map(({ low, high }) =>
    Plot.rectX([{ x1: low / RANGE_MARGIN, x2: high * RANGE_MARGIN }], { x1: "x1", x2: "x2", fill: paint, fillOpacity: 0.08, clip: true, className: "range" }));
}

/** The curve with its two bands and b*; all named forms where they are asked for. */
function fitted(says, perStep, paint) {
  const marks = [];
  const { curve } = says;
  const scaled = (line, key) => line.b.map((b, i) => ({ b, y: line[key][i] && line[key][i] * perStep(b) }));
  if (curve) {
    for (const [band, fillOpacity] of [["further_", 0.1], ["", 0.2]]) {
      const area = curve.b.map((b, i) => ({ b, low: curve[`${band}low`][i] * perStep(b), high: curve[`${band}high`][i] * perStep(b) }));
      marks.push(Plot.areaY(area, { x: "b", y1: "low", y2: "high", fill: paint, fillOpacity, clip: true }));
    }
    marks.push(Plot.line(scaled(curve, "steps"), { x: "b", y: "y", stroke: paint, strokeWidth: 1.4, clip: true }));
  }
  for (const form of state.allForms ? says.forms : []) {
    if (!form.b) continue;
    marks.push(Plot.line(scaled(form, "steps"), {
      x: "b", y: "y", stroke: paint, strokeWidth: 1.2, clip: true, strokeDasharray: DASHES[form.model],
    }));
  }
  if (says.critical_batch && curve) {
    const i = d3.minIndex(curve.b, (b) => Math.abs(Math.log(b / says.critical_batch)));
    const y = curve.steps[i] * perStep(says.critical_batch);
    const [low, high] = says.interval;
    const place = { x: says.critical_batch, y, low: low ?? curve.b[0], high: high ?? curve.b.at(-1) };
    marks.push(
      Plot.link([place], { x1: "low", x2: "high", y: "y", stroke: paint, strokeWidth: 5, strokeOpacity: 0.45, clip: true }),
      Plot.dot([place], { x: "x", y: "y", symbol: "diamond", r: 5.5, fill: paint, stroke: "var(--paper)" }),
    );
  }
  return marks;
}

/** The losses of one variant's runs; the larger the batch, the bolder the colour. */
function losses(width, pointed) {
  const runs = answered().filter((run) => run.variant === lossVariant() && run.losses[state.rule].at.length);
  if (!runs.length) return null;
  const sizes = [...new Set(runs.map((run) => run.batch_size))].sort(d3.ascending);
  const paint = color(lossVariant());
  const shade = (run) => {
    const share = sizes.length > 1 ? sizes.indexOf(run.batch_size) / (sizes.length - 1) : 1;
    return `color-mix(in oklab, ${paint} ${Math.round(55 + 45 * share)}%, var(--paper))`;
  };
  const per = { sfo: (run) => run.effective_batch_size, steps: () => 1, seconds: (run) => run.seconds_per_step ?? 0 };
  const drawn = runs.flatMap((run) => {
    const { at, loss } = run.losses[state.rule];
    return at.map((step, i) => ({ ...run, losses: null, x: step * per[state.lossBy](run), y: loss[i], stroke: shade(run) }));
  }).filter((p) => p.x > 0 && p.y > 0);
  if (!drawn.length) return null;
  const names = { sfo: "SFO so far", steps: "Steps so far", seconds: "Seconds so far" };
  const at = pointed === undefined ? null : runs[pointed % runs.length];
  const options = {
    ...common(width, `Loss against ${names[state.lossBy]}`),
    x: { type: "log", label: names[state.lossBy], ticks: 5, tickFormat: "~s", grid: true, tickSize: 0 },
    y: { type: "log", label: null, ticks: 5, tickFormat: "~g", grid: true, tickSize: 0, domain: lossDomain(drawn) },
    color: { type: "identity" },
    marks: [
      Plot.ruleY([state.threshold], { stroke: "var(--faint)", strokeDasharray: "4 4" }),
      Plot.line(drawn, {
        x: "x", y: "y", z: "directory", stroke: "stroke", clip: true,
        strokeWidth: (p) => (at && p.directory === at.directory ? 4 : 1.4), className: "losses",
      }),
      Plot.tip(drawn, Plot.pointer({
        x: "x", y: "y", maxRadius: 30, lineHeight: 1.3, fill: "var(--panel)", stroke: "var(--line)",
        title: (p) => `${p.name}, b = ${p.batch_size}, ${seedOf(p)}\nloss ${number(p.y, 3)} at ${number(Math.round(p.x))} ${state.lossBy}`,
      })),
    ],
  };
  // Where names have room is known only once the plot has its scales.
  const plain = Plot.plot(options);
  const labels = endLabels(drawn, sizes, plain.scale("x"), plain.scale("y"));
  const style = { fill: "stroke", stroke: "var(--paper)", strokeWidth: 4, fontWeight: 600, clip: false };
  const texts = Plot.text(labels, { x: "x", y: "y", text: "label", textAnchor: "start", dx: 4, ...style, className: "size" });
  return { plot: Plot.plot({ ...options, marginRight: 58, marks: [...options.marks, texts] }), runs };
}

/** The batch sizes beside the ends of their lines, the smallest and the largest first, as far as there is room. */
function endLabels(drawn, sizes, x, y) {
  const placed = [];
  for (const size of [sizes.at(-1), ...sizes.slice(0, -1)]) {
    const own = drawn.filter((p) => p.batch_size === size);
    const end = own.filter((p) => p.directory === own[0].directory).at(-1);
    const [left, top] = [x.apply(end.x), y.apply(Math.max(end.y, y.domain[0]))];
    if (placed.some((other) => Math.abs(other.left - left) < 44 && Math.abs(other.top - top) < 13)) continue;
    placed.push({ ...end, left, top, label: size === sizes[0] || size === sizes.at(-1) ? `b = ${size}` : `${size}` });
  }
  return placed;
}

/** The optimizer whose losses are shown: the chosen one, or the first that is not hidden. */
function lossVariant() {
  if (!isHidden(state.lossVariant)) return state.lossVariant;
  const visible = study.variants.findIndex((_, i) => !isHidden(i));
  return visible < 0 ? state.lossVariant : visible;
}

/** A spike would leave no room for anything else. */
function lossDomain(drawn) {
  const low = Math.min(state.threshold, d3.min(drawn, (p) => p.y));
  const high = Math.max(state.threshold, d3.max(drawn, (p) => p.y));
  return [low / 1.1, Math.min(high, 1e4 * state.threshold) * 1.1];
}
