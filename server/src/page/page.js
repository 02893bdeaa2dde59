"use strict";
// Shows the state of the server. All texts of models, devices and users become text nodes, never markup.

const WINDOW = 120; // samples on the timeline
const RATE = 5; // samples over which rates are averaged

const at = (id) => document.getElementById(id);
const SVG = document.querySelector("svg").namespaceURI;
let key = sessionStorage.getItem("ragtag-key") || "";
let run = null;
let plan = null;
let devices = [];
let samples = [];
let messages = [];
let running = null;

function make(name, className, ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function draw(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) node.setAttribute(attribute, value);
  return node;
}

const bytes = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < 4) { n /= 1024; unit += 1; }
  return `${n.toFixed(unit && n < 100 ? 1 : 0)} ${units[unit]}`;
};
const seconds = (s) => s == null ? "–" : s < 1e-3 ? `${(s * 1e6).toFixed(0)} µs` : s < 1 ? `${(s * 1e3).toFixed(s < 0.1 ? 1 : 0)} ms` : `${s.toFixed(1)} s`;
const number = (n) => n >= 100 ? n.toFixed(0) : n.toFixed(1);
const percent = (share) => `${(share * 100).toFixed(0)} %`;

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  at("key").hidden = response.status !== 401;
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error?.message || `status ${response.status}`);
  }
  return response;
}

/// Returns the increase of a counter per second over the last `count` samples.
function rate(counter, count = RATE, end = samples.length - 1) {
  const [first, last] = [samples[Math.max(0, end - count)], samples[end]];
  const ms = last && first ? last.at_ms - first.at_ms : 0;
  return ms > 0 ? Math.max(0, counter(last) - counter(first)) * 1e3 / ms : 0;
}
const busy = (stage, count, end) => Math.min(1, rate((sample) => sample.busy_us[stage] || 0, count, end) / 1e6);

function tiles(state) {
  const { requests, kv_blocks: kv, latency_s: latency } = state;
  const last = plan.predicted;
  const pair = (of) => [seconds(of?.p50), `p90 ${seconds(of?.p90)}, p99 ${seconds(of?.p99)}`];
  const list = [
    ["New tokens", number(rate((s) => s.new_tokens)), `per second; ${number(last.decode_tokens_per_s)} predicted when full`],
    ["Prompt tokens", number(rate((s) => s.prompt_tokens)), `per second; ${number(last.prefill_tokens_per_s)} predicted`],
    ["Running", requests.active, `sequences, ${requests.in_flight} micro-batches in flight`],
    ["Queue", requests.waiting, `waiting, ${requests.preempted} preempted so far`],
    ["KV pool", percent(kv.used / Math.max(1, kv.total)), `${kv.used} of ${kv.total} blocks, ${kv.cached} cached`],
    ["First token", ...pair(latency.first_token)],
    ["Next token", ...pair(latency.next_token)],
    ["Whole answer", ...pair(latency.answer)],
  ];
  at("tiles").replaceChildren(...list.map(([name, value, more]) => {
    const value_node = make("dd", "", String(value), make("small", "", more));
    return make("div", "", make("dt", "", name), value_node);
  }));
}

const routes = (list) => list.map(({ route }) => typeof route === "string" ? route : Object.keys(route)[0]).join(", ");
const stages = () => plan.prefill_stage ? [...plan.stages, plan.prefill_stage.stage ?? plan.prefill_stage] : plan.stages;

function flow(state) {
  const nodes = [];
  stages().forEach((stage, index) => {
    const device = devices[index] || {};
    const isPrefill = index >= plan.stages.length;
    const share = busy(index);
    const meter = make("meter");
    Object.assign(meter, { max: 1, value: share });
    nodes.push(make("li", "", make("strong", "", isPrefill ? `Prefill on ${stage.device}` : `${index}: ${stage.device}`),
      make("small", "", device.name || ""), make("small", "", `segments ${device.segments?.join(" to ")}`), meter,
      make("small", "", `${percent(share)} busy, ${bytes(stage.memory_bytes.total)}`)));
    const edge = index + 1 < plan.stages.length ? plan.edges[index] : null;
    if (!edge) return;
    const [perSecond, busyShare] = [rate((s) => s.link_bytes[index] || 0), rate((s) => s.link_busy_us[index] || 0) / 1e6];
    nodes.push(make("li", "link", "→", make("small", "", routes(state.routes[index] || [])),
      make("small", "", `${bytes(perSecond)}/s, ${percent(Math.min(1, busyShare))} busy`),
      make("small", "", busyShare > 0 ? `${bytes(perSecond / busyShare)}/s while copying` : "idle")));
  });
  at("flow").replaceChildren(...nodes);
  at("flow-hint").textContent = `${plan.sequences} sequences at full context of ${plan.context} tokens, `
    + `${plan.decode_groups} decode groups of ${plan.decode_rows}, ${plan.credits} micro-batches in flight at most.`;
}

function timeline() {
  const start = Math.max(1, samples.length - WINDOW);
  const line = (counter) => samples.slice(start).map((_, n) => rate(counter, 1, start + n));
  const lines = { new: line((s) => s.new_tokens), prompt: line((s) => s.prompt_tokens) };
  const top = Math.max(1, ...lines.new, ...lines.prompt);
  const shift = WINDOW - lines.new.length;
  const chart = draw("svg", { viewBox: "0 0 240 60", preserveAspectRatio: "none", role: "img", "aria-label": "Tokens per second" });
  for (const [name, values] of Object.entries(lines)) {
    const points = values.map((value, n) => `${(shift + n) * 2 + 1},${(58 - 56 * value / top).toFixed(1)}`);
    chart.append(draw("polyline", { class: name, points: points.join(" ") }));
  }
  const legend = make("p", "hint", make("span", "key-new", "— new tokens"), `, `, make("span", "key-prompt", "- - prompt tokens"), `; top ${number(top)} per second`);
  const strips = stages().flatMap((stage, index) => {
    const strip = draw("svg", { class: "strip", viewBox: `0 0 ${WINDOW} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `Load of ${stage.device}` });
    lines.new.forEach((_, n) => {
      const share = busy(index, 1, start + n);
      if (share > 0.005) strip.append(draw("rect", { class: "busy", x: shift + n, y: (1 - share).toFixed(3), width: 1, height: share.toFixed(3) }));
    });
    return [make("small", "", `stage ${index}: ${stage.device}`), strip];
  });
  at("timeline").replaceChildren(chart, legend, ...strips);
}

function row(names, cells) {
  const node = make("tr");
  cells.forEach((cell, n) => {
    const td = make("td", n ? "figure" : "", make("span", "", cell));
    td.dataset.name = names[n];
    node.append(td);
  });
  return node;
}

function compared(state) {
  const names = ["Part", "Work", "Number", "Predicted", "Measured", "Deviation"];
  const part = (p) => p.place === "stage" ? `${p.is_prefill_stage ? "prefill stage" : `stage ${p.index}`} on ${p.device}`
    : p.place === "edge" ? `link ${p.device} → ${p.to}` : "token return";
  const rows = state.compared.map((p) => row(names, [part(p), p.phase, String(p.micro_batches), seconds(p.predicted_us / 1e6),
    seconds(p.measured_us / 1e6), `${p.deviation > 0 ? "+" : ""}${percent(p.deviation)}`]));
  if (!rows.length) rows.push(row(names.slice(0, 1), ["Nothing has run."]));
  document.querySelector("#compared tbody").replaceChildren(...rows);
  at("findings").replaceChildren(...state.compared.filter((p) => p.finding).map((p) => make("li", "", p.finding)));
}

function planned() {
  const names = ["Stage", "Weights", "KV cache", "Scratch, slots, staging", "Total", "Free before"];
  const rows = stages().map((stage, index) => {
    const m = stage.memory_bytes;
    return row(names, [`${index}: ${stage.device}`, bytes(m.weights + (m.arenas || 0)), bytes(m.kv), bytes(m.scratch + m.slots + m.staging), bytes(m.total), bytes(m.available)]);
  });
  document.querySelector("#memory tbody").replaceChildren(...rows);
  at("reasons").replaceChildren(...plan.reasons.map((reason) => make("li", "", reason)));
}

/// Lists the models for the chat.
function choices(models) {
  const select = at("chat-model");
  const names = models.map((model) => model.name);
  select.hidden = names.length < 2;
  if (select.options.length === names.length) return;
  select.replaceChildren(...names.map((name) => make("option", "", name)));
}

function show(state) {
  at("version").textContent = state.ragtag;
  const hours = state.up_s / 3600;
  at("status").textContent = state.failure || `Running for ${hours < 1 ? `${Math.floor(state.up_s / 60)} min` : `${hours.toFixed(1)} h`}, ${state.connections} connections`;
  at("status").className = state.failure ? "bad" : "";
  const others = state.models.filter((model) => model.name !== state.model)
    .map((model) => `${model.name} (${model.is_loaded ? "loaded" : "not loaded"})`);
  at("models").textContent = others.length ? `Other models: ${others.join(", ")}` : "";
  at("model").textContent = state.model ?? "No model is loaded";
  document.title = `${state.model ?? "no model"} – Ragtag`;
  const { pipeline } = state;
  if (pipeline?.plan) {
    ({ run, plan, devices } = pipeline);
    samples = [];
    at("split").textContent = `Split ${pipeline.split}`;
    planned();
  }
  choices(state.models);
  at("live").hidden = !plan;
  // Another pipeline has another plan, which the next state contains.
  if (pipeline?.run !== run) {
    samples = [];
    return;
  }
  samples = [...samples, ...pipeline.samples].slice(-WINDOW - RATE);
  tiles(pipeline);
  flow(pipeline);
  timeline();
  compared(pipeline);
}

async function poll() {
  try {
    const since = samples.length ? `?since=${samples[samples.length - 1].at_ms}` : "";
    show(await (await ask(`internal/state${since}`)).json());
  } catch (error) {
    at("status").textContent = error.message;
    at("status").className = "bad";
    // A server that has restarted has another plan.
    samples = [];
  }
  setTimeout(poll, document.hidden ? 5000 : 1000);
}

/// Returns the texts of a stream of events.
async function* texts(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices?.[0]?.delta || {};
      const text = (delta.reasoning_content || "") + (delta.content || "");
      if (text) yield text;
    }
  }
}

async function send(event) {
  event.preventDefault();
  const box = document.querySelector("#chat textarea");
  const content = box.value.trim();
  if (!content || running) return;
  messages.push({ role: "user", content });
  box.value = "";
  const answer = make("p", "assistant");
  at("messages").append(make("p", "user", content), answer);
  running = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  let [text, count, began] = ["", 0, 0];
  try {
    const body = JSON.stringify({ model: at("chat-model").value, messages, stream: true });
    const response = await ask("v1/chat/completions", { method: "POST", body, signal: running.signal, headers: { "content-type": "application/json" } });
    for await (const part of texts(response)) {
      text += part;
      answer.textContent = text;
      began ||= performance.now();
      count += 1;
      const s = (performance.now() - began) / 1e3;
      if (s > 0.2) at("chat-speed").textContent = `${number(count / s)} tokens/s`;
    }
  } catch (error) {
    if (error.name !== "AbortError") answer.append(make("span", "bad", ` ${error.message}`));
  }
  if (text) messages.push({ role: "assistant", content: text }); else messages.pop();
  running = null;
  at("send").disabled = false;
  at("stop").disabled = true;
}

at("chat").addEventListener("submit", send);
document.querySelector("#chat textarea").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) send(event);
});
at("stop").addEventListener("click", () => running?.abort());
at("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  at("messages").replaceChildren();
});
at("show-receipt").addEventListener("click", async () => {
  const box = at("receipt");
  box.hidden = false;
  box.textContent = "Reading…";
  box.textContent = await ask("internal/receipt").then((r) => r.json()).then((json) => JSON.stringify(json, null, 2), (error) => error.message);
});
at("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = document.querySelector("#key input").value;
  sessionStorage.setItem("ragtag-key", key);
});
poll();
