// The page itself: it asks for the document every two seconds, and shows it.

const EVERY = 2, WINDOW = 10, POINTS = 60, TOKEN = "headrace-token";
const past = new Past(WINDOW, POINTS);

const STATES = {
  UP: ["●", "good"], RESTARTING: ["▲", "warn"], DOWN: ["■", "bad"], NOT_INSTALLED: ["○", "soft"],
  ready: ["●", "good"], loading: ["▲", "warn"], draining: ["▲", "warn"], failed: ["■", "bad"],
  known: ["○", "soft"], evicted: ["○", "soft"],
};

function state(cell, name) {
  const [sign, className] = STATES[name] || ["▲", "warn"];
  const place = child(cell, "span", "state");
  say(place, `${sign} ${name.toLowerCase().replaceAll("_", " ")}`);
  dress(place, `state ${className}`);
}

function under(cell, text, className = "") {
  const place = child(cell, "div", "sub");
  say(place, text);
  dress(place, `sub ${className}`);
  place.hidden = !text;
}

// -- what the last seconds brought --

const finder = (list, key, wanted) => (document_) => document_[list].find((each) => key(each) === wanted);

function over(find, read, otherwise) {
  const now = find(past.now), before = past.before && find(past.before);
  return now && before ? read(now, before) : otherwise;
}

function times(find, name) {
  const seen = over(find, (now, before) => observed(now[name], before[name]), null);
  const { seconds: bounds } = past.now.bounds;
  return seen && seen.count ? `${seconds(quantile(seen, bounds, 0.5))} · ${seconds(quantile(seen, bounds, 0.99))}` : NONE;
}

const rateOf = (name, find, read) => past.rate(name, (document_) => {
  const found = find(document_);
  return found ? read(found) : undefined;
});

function failedCell(cell, total, recent) {
  number(cell, recent === null || !recent ? count(total) : `${count(total)} (${rate(recent)}/s)`, false);
  cell.classList.toggle("bad", Boolean(recent));
}

// -- devices --

const deviceKey = (row) => row.name;
const findDevice = (row) => finder("devices", deviceKey, row.name);
const isVirtual = (row) => row.state === "UP" && !row.backend_version;
const ended = (row) => sum(row.requests) + sum(row.parts);
const failed = (row) => failures(row.requests) + failures(row.parts) + sum(row.refused);

const devices = new Table(byId("device-table"), [
  { label: "Device", className: "full", show: (cell, row) => {
    say(child(cell, "span", "name"), row.name);
    under(cell, row.reason || row.full_name || row.backend_version, row.reason ? "bad" : "");
  } },
  { label: "State", className: "", show: (cell, row) => state(cell, row.state) },
  { label: "Streams busy", className: "n", show: (cell, row) => {
    number(cell, known(row.streams) ? `${count(row.streams_busy)} of ${count(row.streams)}` : NONE);
    meter(cell, row.streams_busy, row.streams);
  } },
  { label: "Queue", className: "n", show: (cell, row) => {
    number(cell, known(row.queue_depth) ? `${count(row.queue_depth)} of ${count(row.queue_capacity)}` : NONE);
    meter(cell, row.queue_depth, row.queue_capacity);
  } },
  { label: "Requests/s", className: "n", show: (cell, row) => withLine(cell, rateOf(`device ${row.name}`, findDevice(row), ended)) },
  { label: "Failed", className: "n", show: (cell, row) => failedCell(cell, failed(row), rateOf(`failed on ${row.name}`, findDevice(row), failed).now) },
  { label: "Waiting, p50 · p99", className: "n", show: (cell, row) => number(cell, times(findDevice(row), "queue_wait_seconds")) },
  { label: "Execution, p50 · p99", className: "n", show: (cell, row) => number(cell, times(findDevice(row), "execution_seconds")) },
  { label: "Memory", className: "n", show: (cell, row) => number(cell, row.memory_bytes ? bytes(row.memory_bytes) : NONE) },
  { label: "Outages", className: "n", show: (cell, row) => number(cell, count(row.outages)) },
], deviceKey);

// -- networks --

const networkKey = (row) => `${row.name} ${row.version} ${row.generation}`;
const findNetwork = (row) => finder("networks", networkKey, networkKey(row));

const shadowOf = ({ version, device }) => version ? `version ${version}` : device;

const networks = new Table(byId("network-table"), [
  { label: "Network", className: "full", show: (cell, row) => {
    const alone = row.version === "1" && !past.now.networks.some((each) => each.name === row.name && each.version !== "1");
    networks.opener(cell, row, alone ? row.name : `${row.name}, version ${row.version}`);
    const more = [
      row.reason,
      row.notes.length ? plural(row.notes.length + row.notes_left_out, "note") : "",
      row.subgraphs.length ? plural(row.subgraphs.length + row.subgraphs_left_out, kindOf(row.subgraphs[0])) : "",
      row.memory_bytes ? `${bytes(row.memory_bytes)} of memory` : "",
      row.share && row.share < 100 ? `${row.share} % of the requests` : "",
      row.shadow ? `shadow on ${shadowOf(row.shadow)}` : "",
    ].filter(Boolean);
    under(cell, more.join(" · "), row.state === "failed" ? "under bad" : "under");
  } },
  { label: "Device", className: "name", show: (cell, row) => sayDevice(child(cell, "span", "value"), row.device) },
  { label: "State", className: "", show: (cell, row) => state(cell, row.state) },
  { label: "Requests/s", className: "n", show: (cell, row) => withLine(cell, rateOf(`network ${networkKey(row)}`, findNetwork(row), (each) => sum(each.requests))) },
  { label: "In flight", className: "n", show: (cell, row) => number(cell, count(row.in_flight), false) },
  { label: "Failed", className: "n", show: (cell, row) => failedCell(cell, failures(row.requests), rateOf(`failed in ${networkKey(row)}`, findNetwork(row), (each) => failures(each.requests)).now) },
  { label: "Time, p50 · p99", className: "n", show: (cell, row) => number(cell, times(findNetwork(row), "request_seconds")) },
  { label: "Rows a run", className: "n", show: (cell, row) => {
    const seen = over(findNetwork(row), (now, before) => observed(now.batch_size, before.batch_size), null);
    number(cell, seen && seen.count ? three(seen.sum / seen.count) : NONE);
  } },
], networkKey, inside);

function inside(cell, row) {
  const parts = [];
  const part = (title, content) => {
    const section = node("section");
    section.append(node("h3", "", title), content);
    parts.push(section);
  };
  if (row.notes.length) {
    const list = node("ul");
    list.append(...row.notes.map((note) => node("li", "", note)));
    if (row.notes_left_out) list.append(node("li", "soft", `${row.notes_left_out} more`));
    part("Notes of the load", list);
  }
  if (row.subgraphs.length) {
    const picture = node("div", "picture");
    picture.tabIndex = 0;
    picture.setAttribute("role", "group");
    const kind = kindOf(row.subgraphs[0]), steps = kind === "step";
    picture.setAttribute("aria-label", `${steps ? "Steps" : "Subgraphs"} in execution order, and the tensors between them`);
    picture.append(subgraphPicture(row.subgraphs, subgraphTimes(row), byId("network-table").clientWidth));
    if (row.subgraphs_left_out) picture.append(node("p", "soft", `${plural(row.subgraphs_left_out, `more ${kind}`)}`));
    part(steps ? "Steps, with the mean time and the bytes made at each request" : "Subgraphs, with the mean time and the bytes read at each request", picture);
  }
  if (row.shapes.length) {
    const table = node("table");
    for (const each of row.shapes) {
      const line = node("tr");
      line.append(node("td", "code", each.shape), node("td", "", each.device), node("td", "", each.reason), node("td", "n", each.memory_bytes ? bytes(each.memory_bytes) : NONE));
      table.append(line);
    }
    part(`What runs its shapes${row.shapes_left_out ? `, and ${plural(row.shapes_left_out, "more shape")}` : ""}`, table);
  }
  const others = row.series.filter((each) => !each.name.startsWith("subgraph_"));
  if (others.length) {
    const table = node("table");
    for (const each of others) {
      const line = node("tr");
      const labels = Object.entries(each.labels).map(([name, value]) => `${name} ${value}`).join(", ");
      const value = known(each.value) ? count(each.value) : each.value ? `${count(each.value.count)}, mean ${three(each.value.sum / (each.value.count || 1))}` : NONE;
      line.append(node("td", "code", each.name), node("td", "", labels), node("td", "n", value));
      table.append(line);
    }
    part("Counted since the load", table);
  }
  if (row.shadow) {
    const shadow = node("dl", "facts"), { requests } = row.shadow;
    part("Shadow", shadow);
    facts(shadow, [
      ["Gets", `${row.shadow.percent} % of the requests, on ${shadowOf(row.shadow)}`],
      ["Answers", Object.entries(requests).map(([name, value]) => `${count(value)} ${name}`).join(", "), requests.differs || requests.failed ? "bad" : ""],
    ]);
  }
  const about = node("dl", "facts");
  part("Load", about);
  facts(about, [
    ["Runs on", row.execution_devices.join(", ") || NONE],
    ["Loaded in", `${seconds(row.load_seconds)}${row.from_cache ? ", from the cache" : ""}`],
    ["Loaded by", { client: "a client", repository: "the model repository", import: "an import" }[row.origin] || row.origin],
    ["Used last", known(row.idle_seconds) ? `${seconds(row.idle_seconds)} ago` : NONE],
    ["Ended requests", Object.entries(row.requests).map(([name, value]) => `${count(value)} ${name}`).join(", ")],
  ]);
  arrange(cell, parts);
}

function subgraphTimes(row) {
  const found = new Map();
  const read = (name) => row.series.filter((each) => each.name === name);
  for (const { labels, value } of read("subgraph_execution_seconds")) {
    if (value && value.count) found.set(labels.subgraph, { seconds: value.sum / value.count, runs: value.count, bytes: 0 });
  }
  for (const { labels, value } of read("subgraph_cut_bytes_total")) {
    const time = found.get(labels.subgraph);
    if (time) time.bytes = value / time.runs;
  }
  return found;
}

// -- errors and the repository --

const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");

const errors = new Table(byId("error-table"), [
  { label: "Time", className: "plain", show: (cell, row) => {
    say(child(cell, "span", "value"), clock(row.time));
    cell.title = new Date(row.time * 1000).toISOString();
  } },
  { label: "Status", className: "", show: (cell, row) => say(child(cell, "span", "code"), row.code) },
  { label: "Network", className: "name", show: (cell, row) => number(cell, row.network || NONE) },
  { label: "Message", className: "message full", show: (cell, row) => {
    say(child(cell, "span", "value"), row.message);
    under(cell, [row.method, row.caller === "anonymous" ? "" : row.caller].filter(Boolean).join(" · "));
  } },
  { label: "Request id", className: "name", show: (cell, row) => say(child(cell, "span", "code"), row.request_id) },
], (row) => `${row.time} ${row.request_id} ${row.message}`);

const repository = new Table(byId("repository-table"), [
  { label: "Network", className: "full", show: (cell, row) => {
    say(child(cell, "span", "name"), row.name);
    under(cell, row.reason, { ready: "warn", known: "soft", evicted: "soft" }[row.state] || "bad");
  } },
  { label: "Version", className: "n", show: (cell, row) => number(cell, row.version || NONE) },
  { label: "State", className: "", show: (cell, row) => {
    if (row.state) state(cell, row.state);
    else { const place = child(cell, "span", "state"); say(place, "○ not loaded"); dress(place, "state soft"); }
  } },
  { label: "Share", className: "n", show: (cell, row) => number(cell, row.share ? `${row.share} %` : NONE) },
], (row) => `${row.name} ${row.version}`);

// -- one document --

const listed = (counts) => Object.entries(counts).sort((one, other) => other[1] - one[1]).map(([name, value]) => `${count(value)} × ${name}`).join(", ") || NONE;

function certificate(document_) {
  const found = document_.certificate;
  if (!found) return ["Certificate", document_.server.tls ? NONE : "plain text, no TLS", ""];
  const left = found.expires - document_.time;
  const text = `${left > 0 ? `expires in ${duration(left)}` : "has expired"}, ${new Date(found.expires * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
  return ["Certificate", found.stale ? `${text}; its files have changed and are refused` : text, found.stale || left < 7 * 86400 ? "bad" : ""];
}

function show(document_) {
  past.add(document_);
  const { server, process } = document_;
  const all = (read) => (each) => each.networks.reduce((total, one) => total + read(one), 0);
  const total = past.rate("requests", all((each) => sum(each.requests)));
  const bad = past.rate("failed", all((each) => failures(each.requests)));
  const cpu = past.rate("cpu", (each) => each.process.cpu_seconds_total);
  const busy = document_.devices.filter((each) => known(each.streams));
  const add = (read) => busy.reduce((sum_, each) => sum_ + read(each), 0);
  const down = document_.devices.filter((each) => each.state === "DOWN" || each.state === "RESTARTING").length;
  facts(byId("summary"), [
    ["Requests/s", rate(total.now), "", total.line],
    ["Failed/s", rate(bad.now), bad.now ? "bad" : "", bad.line],
    ["In flight", count(document_.networks.reduce((sum_, each) => sum_ + each.in_flight, 0))],
    ["Waiting in queues", count(add((each) => each.queue_depth || 0))],
    ["Streams busy", `${count(add((each) => each.streams_busy))} of ${count(add((each) => each.streams))}`],
    ["Devices down", count(down), down ? "bad" : ""],
    ["Processor time", known(cpu.now) ? `${three(100 * cpu.now)} %` : NONE, "", cpu.line],
    ["Memory", bytes(process.resident_memory_bytes)],
  ]);
  byId("version").textContent = server.version;
  say(byId("facts"), `gRPC ${server.grpc} · HTTP ${server.http} · up ${duration(server.uptime_seconds)}`);
  const missing = document_.devices.filter((each) => each.state === "NOT_INSTALLED");
  // A virtual device computes nothing itself and has no backend.
  const there = document_.devices.filter((each) => each.state !== "NOT_INSTALLED");
  devices.update([...there.filter((each) => !isVirtual(each)), ...there.filter(isVirtual)]);
  say(byId("not-installed"), `Not installed: ${missing.map((each) => each.name).join(", ")}.`);
  byId("not-installed").hidden = !missing.length;
  networks.update(document_.networks);
  byId("filter").hidden = !document_.networks_total && !byId("match").value;
  const left = document_.networks_left_out;
  say(byId("network-count"), left ? `${count(document_.networks.length)} of ${count(document_.networks.length + left)} shown; give a part of a name to find others` : count(document_.networks.length));
  say(byId("network-empty"), document_.networks_total ? "No network has this in its name." : "No network is loaded.");
  byId("network-empty").hidden = document_.networks.length > 0;
  errors.update(document_.errors);
  byId("error-empty").hidden = document_.errors.length > 0;
  showRepository(document_.repository);
  facts(byId("server-facts"), [
    ["Process", `${process.pid}, Python ${server.python}, ${plural(process.threads, "thread")}`],
    ["Processors", count(process.processors)],
    ["Memory", `${bytes(process.resident_memory_bytes)}${known(process.memory_limit_bytes) ? ` of ${bytes(process.memory_limit_bytes)}` : ""}`],
    ["Open files", `${count(process.open_fds)} of ${count(process.max_fds)}`, process.open_fds > 0.9 * process.max_fds ? "bad" : ""],
    certificate(document_),
    ["Access", server.access_control ? `tokens or certificates${server.private_networks ? ", private networks" : ""}; you are ${document_.caller.name} (${document_.caller.role})` : "everybody may do everything"],
    ["Calls of gRPC", listed(document_.calls.grpc)],
    ["Requests of HTTP", listed(document_.calls.http)],
    ["Refused callers", listed(document_.refused_callers)],
    ["Cache", document_.cache ? `${bytes(document_.cache.bytes)} of ${bytes(document_.cache.capacity_bytes)}, ${count(document_.cache.hits)} hits, ${count(document_.cache.misses)} misses` : "none"],
  ]);
  past.sweep();
}

function showRepository(found) {
  byId("repository-section").hidden = !found;
  if (!found) return;
  repository.update(found.versions);
  say(byId("repository-error"), found.error);
  byId("repository-error").hidden = !found.error;
  const text = found.left_out ? `${plural(found.left_out, "more version")}.` : found.versions.length || found.error ? "" : "The repository is empty.";
  say(byId("repository-empty"), text);
  byId("repository-empty").hidden = !text;
}

// -- asking --

const asking = { timer: 0, failures: 0, paused: false, running: null, since: null };
const stored = () => sessionStorage.getItem(TOKEN);

function tell(text, className, stale) {
  say(byId("state"), text);
  dress(byId("state"), `state ${className}`);
  document.title = `headrace: ${text.replace(/^\S /, "")}`;
  document.body.classList.toggle("stale", stale);
}

function later(delay) {
  clearTimeout(asking.timer);
  if (!asking.paused && !document.hidden && byId("login").hidden) asking.timer = setTimeout(ask, delay * 1000);
}

async function ask() {
  clearTimeout(asking.timer);
  if (asking.running) asking.running.abort();
  const mine = (asking.running = new AbortController());
  const limit = setTimeout(() => mine.abort(), 15000);
  const began = performance.now();
  try {
    const token = stored();
    const match = byId("match").value;
    const reply = await fetch(`/status${match ? `?match=${encodeURIComponent(match)}` : ""}`, {
      headers: token ? { authorization: `Bearer ${token}` } : {}, cache: "no-store", credentials: "omit", signal: mine.signal,
    });
    if (reply.status === 401 || reply.status === 403) { login(token, reply.status, await reply.text()); return; }
    if (!reply.ok) throw new Error(`the server answers with ${reply.status}`);
    const document_ = await reply.json();
    if (mine !== asking.running) return;
    asking.failures = 0;
    asking.since = Date.now();
    byId("login").hidden = true;
    byId("main").hidden = false;
    byId("forget").hidden = !token;
    byId("pause").hidden = false;
    show(document_);
    const state_ = document_.server.state;
    tell(state_ === "ready" ? "● ready" : `▲ ${state_}`, state_ === "ready" ? "good" : "warn", false);
    later(Math.max(EVERY, (5 * (performance.now() - began)) / 1000));
  } catch (error) {
    if (mine !== asking.running) return;
    asking.failures += 1;
    const since = asking.since ? `since ${clock(asking.since / 1000)}` : "yet";
    const why = error instanceof TypeError || error.name === "AbortError" ? "no answer from the server" : error.message;
    tell(`■ ${why}, ${since}; the numbers below are old`, "bad", true);
    later(Math.min(30, 2 ** asking.failures));
  } finally {
    clearTimeout(limit);
    if (mine === asking.running) asking.running = null;
  }
}

function login(token, status, text) {
  past.clear();
  byId("main").hidden = true;
  byId("forget").hidden = byId("pause").hidden = true;
  byId("login").hidden = false;
  tell("○ waiting for a token", "soft", false);
  say(byId("facts"), "");
  say(byId("why"), token || status === 403 ? text.trim() : "This server shows its status to those who have a token.");
  dress(byId("why"), token || status === 403 ? "bad" : "");
  if (status === 401) sessionStorage.removeItem(TOKEN);
  byId("token").focus();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value.trim());
  byId("token").value = "";
  byId("login").hidden = true;
  ask();
});
byId("forget").addEventListener("click", () => { sessionStorage.removeItem(TOKEN); ask(); });
byId("pause").addEventListener("click", () => {
  asking.paused = !asking.paused;
  byId("pause").setAttribute("aria-pressed", String(asking.paused));
  say(byId("pause"), asking.paused ? "Go on" : "Pause");
  if (!asking.paused) ask();
  else clearTimeout(asking.timer);
});
byId("match").addEventListener("input", () => later(0.3));
document.addEventListener("visibilitychange", () => {
  clearTimeout(asking.timer);
  if (!document.hidden && !asking.paused) later(0);
});
for (const each of document.querySelectorAll(".window")) each.textContent = `${WINDOW} s`;
tell("▲ asking the server", "warn", false);
ask();
