// SPDX-License-Identifier: Apache-2.0
// What both pages share, and the overview. Text of others is only ever set as text, never as HTML.

export const byId = (id) => document.getElementById(id);
export const number = (value, digits = 3) =>
  value == null ? "–" : Number(value.toPrecision(digits)).toLocaleString();
export const color = (job) => `hsl(${(job * 137.5) % 360} 55% var(--job))`;

export const sizes = ({ min, max }) => (max == null || max >= 4096 ? `${min} or more` : `${min}–${max}`);

export function make(tag, properties = {}, ...children) {
  const { style, ...others } = properties;
  const element = Object.assign(document.createElement(tag), others);
  Object.assign(element.style, style);
  element.append(...children.filter((child) => child != null));
  return element;
}

export const facts = (pairs) =>
  byId("facts").replaceChildren(
    ...pairs.filter(Boolean).map(([name, value, kind = ""]) =>
      make("div", {}, make("small", { textContent: name }), make("b", { textContent: value, className: kind }))));

function problem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

// An answer of the REST interface. A change brings the page's CSRF token.
export async function ask(method, path, body) {
  const headers = { "x-csrf-token": document.querySelector("meta[name=csrf]").content };
  if (body) headers["content-type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  if (answer.status === 401) location = "/login";
  const told = await answer.json();
  problem(answer.ok ? "" : told.error.message);
  return answer.ok ? told : null;
}

// Messages of one kind, as they come. When the server is away, the browser tries again.
export function follow(path, kinds) {
  const source = new EventSource(path);
  source.onopen = () => problem("");
  source.onerror = () => {
    problem("The server does not answer; what is shown is old.");
    fetch("/v1/tenants").then((answer) => { if (answer.status === 401) location = "/login"; }, () => {});
  };
  for (const [kind, take] of Object.entries(kinds)) {
    source.addEventListener(kind, (message) => take(JSON.parse(message.data), source));
  }
}

function slot(each, names) {
  const name = names.get(each.job);
  const title = `${each.id}: ${name ? `${name}, job ${each.job}` : each.state}`;
  const properties = { className: `slot ${each.state}`, title };
  if (!name) return make("span", properties);
  const style = { background: color(each.job) };
  return make("a", { ...properties, style, href: `/jobs/${each.job}`, textContent: each.job });
}

function showMap(slots, jobs, suspects) {
  const wrong = new Map(suspects.map((each) => [each.host, each]));
  const mark = (host) => wrong.has(host) ? make("div", { className: "warn",
    title: wrong.get(host).text ?? "", textContent: "computes wrongly, as an audit has found" }) : null;
  const names = new Map(jobs.map((job) => [job.id, job.name]));
  const hosts = new Map();
  for (const each of slots) hosts.set(each.host, [...(hosts.get(each.host) ?? []), each]);
  byId("map").replaceChildren(...[...hosts].map(([host, own]) =>
    make("div", { className: "host" }, make("small", { textContent: host }), mark(host),
      make("div", { className: "slots" }, ...own.map((each) => slot(each, names))))));
}

const ORDER = ["running", "waiting", "paused"];
const rank = (job) => (ORDER.indexOf(job.state) + 1 || 9) * 100 - job.tier;

function jobRow(job) {
  const cell = (text, className = "") => make("td", { className }, text);
  const swatch = make("i", { className: "swatch" });
  if (job.slots.length) swatch.style.background = color(job.id);
  const done = job.steps_total
    ? make("progress", { value: job.step ?? 0, max: job.steps_total, title: `${job.step} of ${job.steps_total} steps` })
    : job.step == null ? "" : `step ${job.step}`;
  return make("tr", {},
    make("td", {}, swatch, make("a", { href: `/jobs/${job.id}`, textContent: job.name }),
      make("span", { className: "dim", textContent: ` ${job.id} · ${job.tenant}` }),
      job.reason && make("div", { className: "dim", textContent: job.reason }),
      job.warning && make("div", { className: "warn", textContent: job.warning })),
    cell(job.state, `state ${job.state}`),
    cell(job.tier, "number"),
    make("td", { className: "number" }, String(job.slots.length),
      make("span", { className: "dim", textContent: ` of ${sizes(job)}` })),
    cell(done, "wide"),
    cell(job.loss == null ? "" : number(job.loss), "number wide"));
}

function tenantRow(tenant) {
  const idle = tenant.idle_share == null ? "–" : `${(100 * tenant.idle_share).toFixed(1)} %`;
  const values = [tenant.slots, tenant.cap ?? "–", tenant.guarantee, number(tenant.weight),
    number(tenant.slot_hours), idle];
  return make("tr", {}, make("td", { textContent: tenant.name }), ...values.map((value, place) =>
    make("td", { className: `number${place === 2 || place === 3 ? " wide" : ""}`, textContent: value })));
}

function showOverview({ slots, jobs, tenants, suspects, problem }) {
  const count = (state) => slots.filter((each) => each.state === state).length;
  const queued = tenants.reduce((sum, each) => sum + (each.jobs.waiting ?? 0), 0);
  const running = tenants.reduce((sum, each) => sum + (each.jobs.running ?? 0), 0);
  const usable = slots.length - count("lost");
  const used = usable - count("free");
  facts([["slots in use", `${used} of ${usable}`], ["jobs run", running], ["jobs wait", queued],
    count("lost") ? ["slots lost", count("lost"), "failed"] : null,
    problem ? ["nothing can be written", problem, "failed"] : null]);
  showMap(slots, jobs, suspects);
  jobs.sort((one, other) => rank(one) - rank(other) || other.id - one.id);
  byId("jobs").replaceChildren(...jobs.map(jobRow));
  byId("tenants").replaceChildren(...tenants.map(tenantRow));
  document.body.dataset.shown = "overview"; // for tests: the first data are there
}

// A command's words; quotes keep spaces, as in a shell.
const words = (text) => [...text.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map((m) => m[1] ?? m[2] ?? m[3]);

async function submit(event) {
  event.preventDefault();
  const given = Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value !== ""));
  for (const name of ["min", "max", "tier"]) if (given[name]) given[name] = Number(given[name]);
  const job = await ask("POST", "/v1/jobs", { ...given, command: words(given.command) });
  if (job) location = `/jobs/${job.id}`;
}

if (byId("map")) {
  follow("/v1/overview/stream", { overview: showOverview });
  byId("submit")?.addEventListener("submit", submit);
}
