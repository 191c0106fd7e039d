"use strict";
// The tables: fitted forms, the paper's cells, all runs, and what was run.

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function fillTable(table, columns, rows) {
  const head = element("tr", {}, ...columns.map((column) => heading(column)));
  const body = rows.map((row) => {
    const line = element("tr", { className: row.className ?? "" });
    for (const column of columns) {
      const cell = element("td", { className: column.className ?? "" });
      cell.append(column.show(row));
      line.append(cell);
    }
    if (row.directory) line.dataset.directory = row.directory;
    return line;
  });
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

function heading(column) {
  const cell = element("th", { scope: "col", className: column.className ?? "" });
  if (!column.key) {
    cell.textContent = column.title;
    return cell;
  }
  const { key, descending } = state.sort;
  cell.ariaSort = key !== column.key ? "none" : descending ? "descending" : "ascending";
  const button = element("button", { type: "button", textContent: column.title });
  button.dataset.key = column.key;
  button.addEventListener("click", () => {
    state.sort = { key: column.key, descending: key === column.key && !descending };
    showRuns();
    document.querySelector(`#run-table button[data-key="${column.key}"]`).focus();
  });
  cell.append(button);
  return cell;
}

function named(variant, name) {
  const dot = element("span", { className: "dot" });
  dot.style.setProperty("--color", color(variant));
  return element("span", { className: name.length < 24 ? "whole" : "" }, dot, name);
}

/** A batch size that need not be whole, with two digits or all before the point, as in the answer. */
const size = (b) => number(b >= 10 ? Math.round(b) : b, 2);

function span(interval) {
  const [low, high] = interval ?? [null, null];
  if (low === null) return high === null ? "–" : `up to ${size(high)}`;
  return high === null ? `${size(low)} and more` : `${size(low)} to ${size(high)}`;
}

function status(run) {
  const text = run.status ?? "ended too soon";
  return element("span", { className: run.status === "reached" ? "reached" : "missed", textContent: text });
}

const chance = (p) => (p < 0.01 ? "below 0.01" : p > 0.99 ? "above 0.99" : number(p, 2));

function allForms({ probability, formula }) {
  const minimum = `probability of a minimum ${chance(probability)}`;
  return formula === null ? minimum : `${minimum}, of a formula ${chance(formula)}`;
}

function showForms() {
  const rows = chosen().says.flatMap((says) => {
    const variant = variantOf(says);
    if (isHidden(variant)) return [];
    if (!says.forms.length) return [];
    const all = { model: "all curves", critical_batch: says.critical_batch, interval: says.interval, rms: null, className: "best", reason: allForms(says) };
    const fits = says.forms.some((form) => form.b) ? says.forms : [];
    if (says.critical_batch === null && span(says.interval) === "–" && !fits.length) return [];
    return [all, ...fits].map((row) => ({ ...row, variant, name: says.variant }));
  });
  fillTable(document.getElementById("forms"), [
    { title: "optimizer", show: (row) => named(row.variant, row.name) },
    { title: "curve", className: "whole", show: (row) => row.model },
    { title: "b*", className: "number", show: (row) => size(row.critical_batch) },
    { title: `${100 * study.level} % interval`, show: (row) => span(row.interval) },
    { title: "RMS of log K", className: "number", show: (row) => number(row.rms, 2) },
    { title: "note", className: "wide", show: (row) => row.reason },
  ], rows);
}

function showPaper() {
  document.getElementById("paper-section").hidden = !study.paper.length;
  fillTable(document.getElementById("paper"), [
    { title: "optimizer", show: (row) => row.variant },
    { title: "b", className: "number", show: (row) => number(row.batch_size) },
    { title: "here", show: (row) => row.status },
    { title: "K", className: "number", show: (row) => number(row.steps) },
    { title: "SFO", className: "number", show: (row) => number(row.sfo) },
    { title: "accuracy", className: "number", show: (row) => percent(row.accuracy) },
    { title: "seconds", className: "number", show: (row) => number(row.seconds) },
    { title: "paper", show: (row) => (row.paper_reached ? "reached" : "not reached") },
    { title: "accuracy", className: "number", show: (row) => percent(row.paper_accuracy) },
    { title: "seconds", className: "number", show: (row) => number(row.paper_seconds) },
  ], study.paper);
}

function showRuns() {
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const runs = answered().filter((run) => {
    const text = [run.name, run.batch_size, seedOf(run).replace(" ", ""), run.status].join(" ").toLowerCase().split(/\s+/);
    return words.every((word) => text.some((part) => (/^\d+$/.test(word) ? part === word : part.includes(word))));
  });
  const { key, descending } = state.sort;
  if (key) {
    // What is not known comes last, whichever way it is sorted.
    const order = descending ? d3.descending : d3.ascending;
    runs.sort((a, b) => (a[key] === null) - (b[key] === null) || order(a[key], b[key]));
  }
  fillTable(document.getElementById("run-table"), [
    { title: "optimizer", key: "name", show: (run) => named(run.variant, run.name) },
    { title: "b", key: "batch_size", className: "number", show: (run) => number(run.batch_size) },
    { title: "seed", key: "seed", className: "number", show: (run) => run.seed === null ? "unseeded" : String(run.seed) },
    { title: "status", key: "status", show: status },
    { title: "K", key: "steps", className: "number", show: (run) => number(run.steps) },
    { title: "SFO", key: "sfo", className: "number", show: (run) => number(run.sfo) },
    { title: "loss", key: "loss", className: "number", show: (run) => number(run.loss, 3) },
    { title: "accuracy", key: "accuracy", className: "number", show: (run) => percent(run.accuracy) },
    ...(study.runs.some((run) => run.test_accuracy !== null)
      ? [{ title: "test accuracy", key: "test_accuracy", className: "number", show: (run) => percent(run.test_accuracy) }]
      : []),
    { title: "seconds", key: "seconds", className: "number", show: (run) => number(run.seconds, 3) },
    { title: "run", show: (run) => element("a", { href: `${study.runs_at}${encodeURIComponent(run.directory)}/`, textContent: "directory", title: run.directory }) },
  ], runs);
  document.getElementById("count").textContent = `${runs.length} of ${study.runs.length} runs`;
}

function showRan() {
  fillTable(document.getElementById("ran"), [
    { title: "what", show: (row) => row.key },
    { title: "value", className: "wide", show: (row) => row.values.join(", ") },
  ], study.ran);
  const skipped = study.skipped.map((text) => element("p", { textContent: `Skipped ${text}` }));
  document.getElementById("skipped").replaceChildren(...skipped);
}
