// Dashboard of the switch: asks the listener for an overview every second, and draws it.
//
// Names come from the cluster. They become text nodes, never HTML: the page's policy (require-trusted-types-for) makes
// the browser refuse anything else.
"use strict";

const INTERVAL_MS = 1000;
const POINTS = 120;
const LATENCY_POINTS = 10;
const DROP_CURVES = 6;
const SVG = "http://www.w3.org/2000/svg";
const TOKEN = "palisade-token";

const byId = (id) => document.getElementById(id);

/// Makes an element with attributes and children, which are nodes or texts.
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.map((child) => (child instanceof Node ? child : shown(child))));
  return element;
}

function shape(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/// Spells out characters that change the direction of text or show nothing, as the command line does.
function shown(text) {
  const escape = (c) => `\\u{${c.codePointAt(0).toString(16)}}`;
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, escape);
}

const row = (...cells) => make("tr", {}, ...cells);
const cell = (text, kind = "") => make("td", kind ? { class: kind } : {}, text);

function replace(id, ...children) {
  byId(id).replaceChildren(...children);
}

function count(value) {
  if (!Number.isFinite(value)) return "-";
  for (const [unit, name] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (value >= unit) return (value / unit).toPrecision(3) + name;
  }
  return value >= 10 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}

function duration(ns) {
  for (const [unit, name] of [[1e9, " s"], [1e6, " ms"], [1e3, " µs"]]) {
    if (ns >= unit) return (ns / unit).toPrecision(3) + name;
  }
  return `${ns.toFixed(0)} ns`;
}

function time(seconds) {
  if (seconds < 120) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const plural = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// Requests.

/// Error of a request that the listener has refused.
class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(10000) });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, body.error || `the switch answers ${response.status}`);
  return { status: response.status, body };
}

function askForToken(hadToken) {
  sessionStorage.removeItem(TOKEN);
  byId("data").hidden = true;
  if (byId("access").hidden) byId("token").focus();
  byId("access").hidden = false;
  byId("refused").textContent = hadToken ? "The switch refuses this token." : "";
  setState("token wanted", "bad");
}

function setState(text, kind) {
  byId("state").textContent = text;
  byId("state").className = `badge ${kind}`;
}

// Rates: differences of two overviews.

let last = null;
let history = [];

const since = (now, then) => Math.max(0, now - then);

function rates(now, then) {
  const seconds = (now.at_unix_ms - then.at_unix_ms) / 1000;
  if (seconds <= 0) return null;
  const rate = (name) => since(now.totals[name], then.totals[name]) / seconds;
  const before = new Map(then.drops.map((drop) => [drop.name, drop.frames]));
  const drops = new Map();
  for (const drop of now.drops) drops.set(drop.name, since(drop.frames, before.get(drop.name) || 0) / seconds);
  return {
    at: now.at_unix_ms,
    received: rate("received"),
    transmitted: rate("transmitted"),
    bitsIn: 8 * rate("received_bytes"),
    bitsOut: 8 * rate("transmitted_bytes"),
    lost: rate("lost"),
    drops,
    workers: now.workers.map((worker) => workerRate(worker, then.workers.find((one) => one.worker === worker.worker))),
    latency: now.latency,
  };
}

function workerRate(now, then) {
  if (!then || now.clock_ns <= then.clock_ns) return { worker: now.worker, core: now.core };
  const ns = now.clock_ns - then.clock_ns;
  const received = since(now.received, then.received);
  const busy = since(now.busy_ns, then.busy_ns);
  return {
    worker: now.worker,
    core: now.core,
    load: Math.min(100, (100 * busy) / ns),
    received: (1e9 * received) / ns,
    batch: received / since(now.batches, then.batches),
    perPacket: busy / received,
    waited: now.waited_ns === null || then.waited_ns === null ? NaN : (100 * since(now.waited_ns, then.waited_ns)) / ns,
  };
}

/// Durations below which these shares of the packets were, between two lists of counts by bucket.
function quantiles(now, then, shares) {
  const before = new Map(then);
  const counts = now.map(([ns, all]) => [ns, since(all, before.get(ns) || 0)]).filter(([, some]) => some > 0);
  const sum = counts.reduce((all, [, some]) => all + some, 0);
  return shares.map((share) => {
    let below = 0;
    for (const [ns, some] of counts) {
      below += some;
      if (below >= share * sum) return ns;
    }
    return null;
  });
}

// Graphs.

/// Next round number, for the end of an axis.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) || value;
}

/// Draws curves over the time of the history: names, and a function of a point for each.
function graph(id, curves, least) {
  const [width, height, left, bottom] = [420, 140, 46, 16];
  const values = curves.map(({ of }) => history.map(of));
  const top = roundUp(Math.max(least, ...values.flat().filter(Number.isFinite)));
  const end = last.at_unix_ms;
  const x = (at) => left + ((width - left) * (at - end + POINTS * INTERVAL_MS)) / (POINTS * INTERVAL_MS);
  const y = (value) => 6 + (height - bottom - 6) * (1 - value / top);
  const drawing = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const share of [0, 0.5, 1]) {
    const at = y(share * top);
    drawing.append(shape("line", { x1: left, x2: width, y1: at, y2: at, class: "grid" }));
    drawing.append(shape("text", { x: left - 5, y: at + 4, "text-anchor": "end" }, count(share * top)));
  }
  drawing.append(shape("text", { x: left, y: height - 2 }, `${(POINTS * INTERVAL_MS) / 60000} min ago`));
  drawing.append(shape("text", { x: width, y: height - 2, "text-anchor": "end" }, "now"));
  const legend = make("figcaption", { class: "legend" });
  curves.forEach(({ name }, number) => {
    const points = history
      .map((point, at) => [x(point.at), values[number][at]])
      .filter(([at, value]) => at >= left && Number.isFinite(value))
      .map(([at, value]) => `${at.toFixed(1)},${y(value).toFixed(1)}`);
    drawing.append(shape("polyline", { points: points.join(" "), class: `curve c${number % 6}` }));
    const current = values[number].at(-1);
    legend.append(make("span", {}, make("i", { class: `c${number % 6}` }), `${name} ${count(current ?? NaN)}`));
  });
  const names = curves.map(({ name }, number) => `${name} ${count(values[number].at(-1) ?? NaN)}`);
  drawing.setAttribute("aria-label", shown(names.join(", ")));
  replace(id, drawing, legend);
}

function drawGraphs() {
  graph("packets", [
    { name: "received", of: (point) => point.received },
    { name: "transmitted", of: (point) => point.transmitted },
  ], 10);
  graph("bits", [
    { name: "received", of: (point) => point.bitsIn },
    { name: "transmitted", of: (point) => point.bitsOut },
  ], 1000);
  // The reasons with most drops in the time of the graph; the others are one curve.
  const sums = new Map();
  for (const point of history) for (const [name, rate] of point.drops) sums.set(name, (sums.get(name) || 0) + rate);
  const names = [...sums].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const own = names.length > DROP_CURVES ? names.slice(0, DROP_CURVES - 1) : names;
  const others = names.slice(own.length);
  const curves = own.map((name) => ({ name, of: (point) => point.drops.get(name) || 0 }));
  if (others.length > 0) {
    const sum = (point) => others.reduce((all, name) => all + (point.drops.get(name) || 0), 0);
    curves.push({ name: `${others.length} others`, of: sum });
  }
  if (curves.length === 0) curves.push({ name: "none", of: () => 0 });
  graph("dropped", curves, 10);
  const workers = last.workers.map(({ worker }) => ({
    name: `worker ${worker}`,
    of: (point) => point.workers.find((one) => one.worker === worker)?.load,
  }));
  graph("load", mostLoaded(workers), 100);
}

/// The six workers with most load now, in their order.
function mostLoaded(curves) {
  const now = history.at(-1);
  const chosen = new Set([...curves].sort((a, b) => (now ? b.of(now) - a.of(now) : 0)).slice(0, 6));
  return curves.filter((curve) => chosen.has(curve));
}

// Tables.

function drawTables() {
  const now = history.at(-1);
  const all = [...last.drops].sort((a, b) => b.frames - a.frames);
  const reasons = all.map((drop) => row(
    cell(drop.name, "word"),
    cell(count(now?.drops.get(drop.name) ?? NaN), "number"),
    cell(String(drop.frames), "number"),
    cell(drop.meaning),
  ));
  const lost = last.lost.map((loss) => row(
    cell(`lost before: ${loss.name}`, "word"), cell("", "number"), cell(String(loss.frames), "number"), cell(loss.meaning),
  ));
  const none = row(make("td", { colspan: 4 }, "Nothing was dropped."));
  replace("reasons", ...(reasons.length + lost.length ? [...reasons, ...lost] : [none]));

  replace("workers", ...last.workers.map((worker) => {
    const rate = now?.workers.find((one) => one.worker === worker.worker) || {};
    const share = (value) => (Number.isFinite(value) ? `${value.toFixed(1)} %` : "-");
    const number = (value) => (Number.isFinite(value) ? value.toFixed(1) : "-");
    return row(
      cell(worker.worker), cell(worker.core), cell(share(rate.load), "number"), cell(count(rate.received), "number"),
      cell(number(rate.batch), "number"), cell(number(rate.perPacket), "number"), cell(share(rate.waited), "number"),
    );
  }));

  const earlier = history.at(-1 - LATENCY_POINTS) || history[0];
  const shares = [0.5, 0.9, 0.99, 0.999, 0.9999];
  const found = earlier ? quantiles(last.latency, earlier.latency, shares) : shares.map(() => null);
  replace("latency", ...shares.map((share, at) => make("div", {},
    make("dt", {}, `${Number((100 * share).toFixed(2))} %`),
    make("dd", {}, found[at] === null ? "-" : duration(found[at])),
  )));

  const numbers = [
    ["received", `${count(now?.received ?? NaN)}/s`],
    ["transmitted", `${count(now?.transmitted ?? NaN)}/s`],
    ["dropped", `${count(now ? [...now.drops.values()].reduce((sum, rate) => sum + rate, 0) : NaN)}/s`],
    ["lost before", `${count(now?.lost ?? NaN)}/s`],
    ["flows", count(last.totals.flows)],
    ["ports", String(last.totals.ports)],
    ["generation", String(last.status.generation)],
  ];
  replace("now", ...numbers.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

const end = (pod, address) => (pod ? `${pod} (${address})` : address);

/// Protocols with ports: the numbers of others identify an echo.
const PORTS = new Set(["TCP", "UDP", "SCTP"]);

/// Groups the samples by ends, destination port and decision, the last one first.
function drawDenials() {
  const groups = new Map();
  for (const denial of last.denials) {
    const flow = denial.flow;
    const texts = [
      flow ? end(denial.source_pod, flow.src) : denial.source_pod || denial.port,
      flow ? end(denial.destination_pod, flow.dst) : denial.destination_pod || "-",
      flow ? `${flow.protocol} ${PORTS.has(flow.protocol) ? flow.dst_port : ""}` : "-",
      denial.decided_by || `${denial.reason}: policy has changed since`,
    ];
    const key = JSON.stringify(texts);
    const group = groups.get(key) || { texts, samples: 0, at: new Date(denial.at_unix_ms).toISOString().slice(11, 19) };
    group.samples += 1;
    groups.set(key, group);
  }
  const rows = [...groups.values()].map(({ texts, samples, at }) =>
    row(cell(at, "word"), cell(samples, "number"), ...texts.map((text, column) => cell(text, column === 2 ? "word" : ""))));
  const none = row(make("td", { colspan: 6 }, "Policy has denied no packet yet."));
  replace("denials", ...(rows.length ? rows : [none]));
}

// State of the switch, and drift of the policy directory.

function drawStatus() {
  const { status } = last;
  byId("about").textContent = shown(`version ${status.version}, process ${status.pid}, ${time(status.uptime_s)} up`);
  const problems = [...new Set([...last.not_ready, ...(status.problems || [])])];
  byId("problems-box").hidden = problems.length === 0;
  replace("problems", ...problems.map((problem) => make("li", {}, problem)));
  setState(last.not_ready.length === 0 ? "ready" : "not ready", last.not_ready.length === 0 ? "good" : "bad");

  const now = last.at_unix_ms / 1000;
  const policy = status.policy;
  byId("policy").textContent = policy
    ? shown(`From ${source(policy)}, in force for ${time(now - policy.since_unix_s)} as generation ${policy.generation}: ` +
      `${counted(policy)}${plural(policy.rules, "rule")}, ${plural(policy.pods, "pod")}.`)
    : "No rule tables are loaded: no traffic of pods passes, unless the configuration has fail = \"open\".";
  const rejected = status.rejected_reload;
  if (!rejected) {
    const text = policy?.source.kind === "directory"
      ? "The directory and the policy in force are the same."
      : "No change of a policy directory waits.";
    return replace("drift", make("p", { class: "good" }, text));
  }
  const errors = rejected.errors.map((error) => make("li", {}, error));
  if (rejected.left_out > 0) errors.push(make("li", {}, `${plural(rejected.left_out, "more error")}: see the log`));
  replace("drift",
    make("p", { class: "bad" }, `Drift: the files of ${rejected.path} have changed, and the switch has refused them ` +
      `${time(now - rejected.at_unix_s)} ago. The policy above stays in force until the files are right:`),
    make("ul", {}, ...errors));
}

function source({ source }) {
  if (source.kind === "directory") return `the directory ${source.path}`;
  return source.uid === undefined ? "the control socket" : `the control socket (user ${source.uid}, process ${source.pid})`;
}

function counted(policy) {
  return policy.objects === undefined ? "" : `${plural(policy.objects, "object")}, ${plural(policy.policies, "policy").replace("policys", "policies")}, `;
}

// Heat map, and the explanation of a cell.

let heat = null;
let isHeatCurrent = false;
let chosen = null;

async function refreshHeat() {
  const generation = last.status.policy?.generation ?? 0;
  if (heat && isHeatCurrent && (heat.generation ?? 0) === generation) return;
  const { status, body } = await ask("/v1/reachability");
  isHeatCurrent = status === 200;
  const isOther = !heat || heat.generation !== body.generation;
  if (body.groups && isOther) {
    heat = body;
    drawHeat();
  }
  noteHeat();
}

function noteHeat() {
  if (!heat) {
    byId("heat-note").textContent = "The switch computes it.";
    return;
  }
  const parts = [];
  if (heat.error) {
    parts.push(`No heat map: ${heat.error}.`);
  } else if (heat.pods === 0) {
    parts.push("No pods are in the tables.");
  } else {
    const lines = heat.groups.length;
    const pods = heat.pods - heat.pods_left_out;
    parts.push(`${lines} of ${plural(lines + heat.groups_left_out, "line")}, ${pods} of ${plural(heat.pods, "pod")}.`);
    if (heat.is_grouped) parts.push("Pods that no policy tells apart share a line.");
    parts.push("Sources stand on the left, destinations above. A click on a cell explains it.");
  }
  if (!isHeatCurrent) parts.push("Policy has changed: the switch computes it again.");
  byId("heat-note").textContent = shown(parts.join(" "));
}

function title(group) {
  const more = group.members_left_out > 0 ? ` and ${group.members_left_out} more` : "";
  return shown(group.members.join(", ") + more);
}

function drawHeat() {
  chosen = null;
  byId("explanation-box").hidden = true;
  if (heat.groups.length === 0) return replace("heat");
  const head = make("tr", {}, make("th", { class: "corner" }, "from \\ to"));
  for (const group of heat.groups) head.append(make("th", { title: title(group), scope: "col" }, make("span", {}, group.name)));
  const traffic = new Map(heat.cells.map(([from, to, kind]) => [from * heat.groups.length + to, heat.traffic[kind]]));
  const body = make("tbody");
  heat.groups.forEach((source, from) => {
    const line = make("tr", {}, make("th", { title: title(source), scope: "row" }, source.name));
    heat.groups.forEach((destination, to) => {
      const kind = traffic.get(from * heat.groups.length + to);
      line.append(make("td", {}, kind ? heatCell(source, destination, kind) : make("button", { class: "void", disabled: "" })));
    });
    body.append(line);
  });
  replace("heat", make("table", { class: "heat" }, make("thead", {}, head), body));
}

function heatCell(source, destination, kind) {
  const text = shown(`${source.name} to ${destination.name}: ${kind.text}`);
  const look = kind.share === 0 ? "none" : kind.share === 1 ? "all" : "some";
  const button = make("button", { class: look, title: text, "aria-label": text, type: "button" });
  button.addEventListener("click", () => {
    chosen?.button.classList.remove("chosen");
    button.classList.add("chosen");
    chosen = { button, source, destination, text };
    byId("protocol").value = kind.protocol;
    byId("port").value = kind.port;
    byId("explanation-box").hidden = false;
    explain();
  });
  return button;
}

/// Ends to ask for, in the order of the attempts: two pods of one group, or addresses of both families.
function pairs({ source, destination }) {
  const isOne = source === destination && source.pods > 0;
  if (isOne) return [[source.ends[0], source.ends[1] || source.ends[0]]];
  const from = source.pods > 0 ? source.ends.slice(0, 1) : source.ends;
  const to = destination.pods > 0 ? destination.ends.slice(0, 1) : destination.ends;
  return from.flatMap((one) => to.map((other) => [one, other]));
}

async function explain() {
  if (!chosen) return;
  const asked = chosen;
  byId("pair").textContent = asked.text;
  replace("explanation", make("p", {}, "…"));
  let problem = new Error("no address of these ends is known");
  for (const [from, to] of pairs(asked)) {
    const query = new URLSearchParams({ from, to, protocol: byId("protocol").value, port: byId("port").value });
    try {
      const { body } = await ask(`/v1/explain?${query}`);
      if (asked !== chosen) return;
      return replace("explanation", ...body.map((report) => answer(report, from, to)));
    } catch (error) {
      problem = error;
    }
  }
  if (asked === chosen) replace("explanation", make("p", { class: "bad" }, problem.message));
}

function verdict(word) {
  return make("b", { class: word === "allow" ? "good" : "bad" }, word);
}

function answer(report, from, to) {
  const { flow } = report;
  const dropped = report.dropped ? ` (${report.dropped})` : "";
  const ports = PORTS.has(flow.protocol) ? ` ${flow.dst_port}` : "";
  const box = make("div", { class: "answer" }, make("h3", {}, verdict(report.verdict),
    `${dropped}: ${from} (${flow.src}) to ${to} (${flow.dst}), ${flow.protocol}${ports}`));
  for (const side of [report.egress, report.ingress].filter(Boolean)) {
    box.append(make("p", { class: "side" }, make("b", {}, side.direction), ` of ${side.pod}: `, verdict(side.verdict), `: ${side.reason}`));
    if (side.row.length > 1) {
      box.append(make("ul", {}, ...side.row.map((span) => make("li", {}, `${span.ports}: `, verdict(span.verdict), `: ${span.reason}`))));
    }
  }
  box.append(make("ul", { class: "steps" }, ...report.steps.map((step) =>
    make("li", step.passes ? {} : { class: "bad" }, `${step.passes ? "" : "dropped: "}${step.text}`))));
  return box;
}

// The turn of the clock.

async function turn() {
  if (document.hidden) return;
  try {
    const { body } = await ask("/v1/overview");
    const isRestarted = last && last.status.pid !== body.status.pid;
    if (isRestarted) history = [];
    const point = last && !isRestarted ? rates(body, last) : null;
    if (last && body.at_unix_ms === last.at_unix_ms) return;
    last = body;
    if (point) history = [...history, point].slice(-POINTS - 1);
    byId("access").hidden = true;
    byId("data").hidden = false;
    drawStatus();
    drawGraphs();
    drawTables();
    drawDenials();
    await refreshHeat();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      askForToken(sessionStorage.getItem(TOKEN) !== null);
      return;
    }
    setState(error instanceof Refused ? error.message : "switch gone, trying again", "bad");
  }
}

async function run() {
  for (;;) {
    if (byId("access").hidden || sessionStorage.getItem(TOKEN) !== null) await turn();
    await new Promise((done) => setTimeout(done, INTERVAL_MS));
  }
}

byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value.trim());
  byId("token").value = "";
  turn();
});
byId("question").addEventListener("submit", (event) => {
  event.preventDefault();
  explain();
});
document.addEventListener("visibilitychange", () => turn());
run();
