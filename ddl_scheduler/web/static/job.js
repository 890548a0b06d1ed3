// SPDX-License-Identifier: Apache-2.0
// A job's page: its plots, its events, its logs, and what may be done with it.

import { ask, byId, color, facts, follow, make, number, sizes } from "/static/app.js";

const job = byId("job").dataset.job;
const KEPT = 200000; // characters of the logs
const clock = (time) => new Date(time * 1000).toLocaleTimeString();
const MARKS = {
  died: ["x", "--bad", "death"],
  joined: ["triangle-up", "--good", "join"],
  audit: ["star", "--bad", "finding of an audit"],
  rollback: ["arrow-left", "--warn", "return to a checkpoint"],
  preempted: ["triangle-down", "--warn", "preemption"],
};

function theme() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(name).trim();
}

// An axis of whole numbers.
const whole = (values) => (Math.max(...values) - Math.min(...values) < 6 ? { dtick: 1 } : { tickformat: "d" });

function plot(id, traces, x, y) {
  const value = theme();
  const empty = !traces.some((trace) => trace.y.some((each) => each != null));
  for (const trace of traces) if (trace.mode === "lines" && trace.y.length < 2) trace.mode = "lines+markers";
  const axis = ({ title, ...more }) => ({
    title: { text: title ?? "", font: { size: 12 } }, gridcolor: value("--line"), zerolinecolor: value("--line"),
    linecolor: value("--line"), automargin: true, visible: !empty, ...more,
  });
  const layout = {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: value("--dim"), size: 11 },
    margin: { t: 6, r: 10, b: 36, l: 44 }, xaxis: axis({ tickangle: 0, nticks: 5, ...x }), yaxis: axis(y), uirevision: "kept",
    annotations: empty ? [{ text: "no data yet", xref: "paper", yref: "paper", showarrow: false, font: { size: 14 } }] : [],
    showlegend: !empty && traces.length > 1, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
  };
  Plotly.react(id, traces, layout, { displayModeBar: false, responsive: true });
}

// How many workers there were at a time.
const workersAt = (history, time) =>
  (history.filter((point) => point.time <= time).at(-1) ?? history[0])?.workers ?? 0;

// A job that gives its slots back because it has ended or was paused is not preempted.
function changes(events, live) {
  const found = (live?.events ?? []).filter((each) => each.kind in MARKS)
    .map((each) => ({ kind: each.kind, time: each.time, text: each.text ?? each.cause ?? each.kind }));
  let before = 0;
  for (const each of events) {
    if (/^(done|failed|cancelled|paused)/.test(each.text)) before = 0;
    const slots = Number(/^has (\d+) slots/.exec(each.text)?.[1] ?? NaN);
    if (slots < before) found.push({ kind: "preempted", time: each.time, text: `${before} to ${slots} slots` });
    if (!Number.isNaN(slots)) before = slots;
  }
  return found;
}

function showPlots({ history, events, live }) {
  const value = theme();
  const line = { color: value("--main"), width: 2 };
  const times = history.map((point) => new Date(point.time * 1000));
  const measured = history.filter((point) => point.loss != null && point.step != null);
  plot("loss", [{ x: measured.map((p) => p.step), y: measured.map((p) => p.loss), mode: "lines", line }],
    { title: "step", ...whole(measured.map((p) => p.step)) }, {});
  const workers = { x: times, y: history.map((p) => p.workers), mode: "lines", line: { ...line, shape: "hv" }, name: "workers" };
  const marks = changes(events, live);
  const marked = Object.entries(MARKS).map(([kind, [symbol, tone, name]]) => {
    const own = marks.filter((each) => each.kind === kind);
    return {
      name, mode: "markers", marker: { symbol, size: 11, color: value(tone) }, text: own.map((each) => each.text),
      x: own.map((each) => new Date(each.time * 1000)), y: own.map((each) => workersAt(history, each.time)),
    };
  });
  plot("workers", [workers, ...marked.filter((trace) => trace.x.length)], {}, { rangemode: "tozero", ...whole([0, ...workers.y]) });
  const [unit, factor] = history.some((p) => p.seconds_per_step >= 1) ? ["s", 1] : ["ms", 1000];
  plot("steptime", [{ x: times, y: history.map((p) => p.seconds_per_step * factor || null), mode: "lines", line }],
    {}, { ticksuffix: ` ${unit}`, rangemode: "tozero" });
}

function showHead({ job: found, live, history }) {
  byId("swatch").style.background = found.slots.length ? color(found.id) : "";
  byId("command").textContent = (found.spec.command ?? []).join(" ");
  const steps = found.steps_total ? `${found.step ?? 0} of ${found.steps_total}` : found.step ?? "–";
  const speed = live?.samples_per_second;
  facts([
    ["state", found.state, found.state], ["slots", `${found.slots.length} of ${sizes(found)}`],
    ["workers", found.slots.length ? history.at(-1)?.workers ?? 0 : 0], ["tier", found.tier], ["step", steps],
    ["loss", number(found.loss ?? live?.loss)], speed ? ["samples a second", number(speed)] : null,
    ["slot-hours", number(found.slot_seconds / 3600)],
    live?.audited ? ["shares audited", live.audited] : null,
    live?.mismatches ? ["audits that found an error", live.mismatches, "failed"] : null,
    found.reason ? ["reason", found.reason, "waiting"] : null,
    found.warning ? ["deadline", found.warning, "warn"] : null,
  ]);
  const ended = ["done", "failed", "cancelled"].includes(found.state);
  if (!byId("scale")) return;
  for (const name of ["min", "max"]) {
    const input = byId("scale").elements[name];
    if (document.activeElement !== input && !input.dataset.touched) input.value = found[name] ?? "";
  }
  byId("scale").querySelector("button").disabled = ended;
  byId("cancel").disabled = ended;
  byId("pause").disabled = !["running", "waiting"].includes(found.state);
  byId("resume").disabled = found.state !== "paused";
}

function showReport(report) {
  showHead(report);
  showPlots(report);
  const recovered = (report.live?.events ?? []).filter((each) => each.kind === "recovered");
  byId("recoveries").replaceChildren(...recovered.slice(-20).reverse().map((each) =>
    make("tr", {}, make("td", { textContent: clock(each.time) }),
      make("td", { textContent: (each.died ?? []).map((member) => `worker ${member}`).join(", ") }),
      make("td", { className: "number", textContent: each.adopted ?? "–" }),
      make("td", { className: "number", textContent: number(each.seconds) }))));
  if (!recovered.length) byId("recoveries").replaceChildren(make("tr", {}, make("td", { className: "dim", textContent: "none" })));
  byId("events").replaceChildren(...report.events.slice(-100).reverse().map((each) =>
    make("li", {}, make("time", { textContent: clock(each.time) }), each.text)));
  document.body.dataset.shown = "job"; // for tests: the first data are there
}

function showLog({ log, text }) {
  const logs = byId("logs");
  const below = logs.scrollTop + logs.clientHeight > logs.scrollHeight - 40;
  const prefix = log === "job" ? "" : `[${log.replace("worker", "")}] `;
  const lines = text.replace(/\n$/, "").split("\n").map((line) => `${prefix}${line}\n`).join("");
  logs.textContent = (logs.textContent + lines).slice(-KEPT);
  if (below) logs.scrollTop = logs.scrollHeight;
}

// The first message has all points, others the new ones; after a break, all come again.
let last = null;
function takeReport(report) {
  const known = last?.history.at(-1)?.time ?? 0;
  const added = report.history.filter((point) => point.time > known);
  last = { ...report, history: [...(last?.history ?? []), ...added] };
  showReport(last);
}
follow(`/v1/jobs/${job}/report/stream`, { report: takeReport });
follow(`/v1/jobs/${job}/logs/stream`, { log: showLog, end: (_, source) => source.close() });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => last && showPlots(last));

for (const action of ["pause", "resume", "cancel"]) {
  byId(action)?.addEventListener("click", () => {
    if (action !== "cancel" || confirm("Cancel this job forever?")) ask("POST", `/v1/jobs/${job}/${action}`);
  });
}
byId("scale")?.addEventListener("input", (event) => { event.target.dataset.touched = "1"; });
byId("scale")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { min, max } = event.target.elements;
  const done = await ask("PATCH", `/v1/jobs/${job}`, { min: Number(min.value), max: Number(max.value) });
  if (done) for (const input of [min, max]) delete input.dataset.touched;
});
