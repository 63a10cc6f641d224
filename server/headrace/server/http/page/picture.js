// Pictures in SVG: small lines of rates, the subgraphs of a network that HETERO split, and the steps of a pipeline.

function svg(kind, attributes = {}, text = null) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
}

function sparkline() {
  const picture = svg("svg", { class: "line", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" });
  picture.append(svg("polyline"));
  return picture;
}

function drawLine(picture, values, points) {
  const most = Math.max(...values, 1e-9);
  const step = 100 / (points - 1);
  const first = 100 - (values.length - 1) * step;
  const at = values.map((value, index) => `${(first + index * step).toFixed(1)},${(19 - (18 * value) / most).toFixed(1)}`);
  picture.firstChild.setAttribute("points", at.length > 1 ? at.join(" ") : "");
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

const HIGH = 62, ROW = 98, TOP = 46, WIDEST = 200, NARROWEST = 158;

// One lane for each device, and one row for each subgraph, in execution order. `times` has the time
// and the bytes of each subgraph by its number, as far as they are known. `room` is in pixels.
function subgraphPicture(subgraphs, times, room) {
  const lanes = [...new Set(subgraphs.map((each) => each.device))];
  const lane = Math.floor(Math.max(NARROWEST, Math.min(WIDEST, room / lanes.length)));
  const wide = lanes.length * lane, boxed = lane - 18;
  const high = TOP + 30 + subgraphs.length * ROW;
  const picture = svg("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "img" });
  picture.setAttribute("aria-label", subgraphs.map(said).join("; "));
  const middle = (device) => lanes.indexOf(device) * lane + lane / 2;
  const top = (number) => TOP + 30 + (number - 1) * ROW;
  const request = { x: middle(subgraphs[0].device), y: TOP };
  picture.append(arrowHead());
  for (const device of lanes) {
    picture.append(svg("line", { class: "lane", x1: middle(device), x2: middle(device), y1: 22, y2: high }));
    picture.append(svg("text", { class: "title", x: middle(device), y: 14, "text-anchor": "middle" }, cut(device, 20)));
  }
  for (const each of subgraphs) {
    for (const { from, tensors } of each.reads) {
      const source = subgraphs.find((other) => other.number === from);
      if (from && !source) continue;
      const start = from ? { x: middle(source.device), y: top(from) + HIGH } : { ...request };
      picture.append(...edge(start, { x: middle(each.device), y: top(each.number) }, tensors, lane, from ? each.number - from : 1));
    }
  }
  picture.append(svg("rect", { x: request.x - 34, y: TOP - 20, width: 68, height: 20, rx: 10 }));
  picture.append(svg("text", { x: request.x, y: TOP - 6, "text-anchor": "middle" }, "request"));
  for (const each of subgraphs) picture.append(box(each, middle(each.device) - boxed / 2, top(each.number), boxed, times.get(String(each.number))));
  return picture;
}

const kindOf = (subgraph) => (subgraph.step ? "step" : "subgraph");

function said(subgraph) {
  const reads = subgraph.reads.map(({ from, tensors }) => `${plural(tensors, "tensor")} of ${from ? `${kindOf(subgraph)} ${from}` : "the request"}`);
  const runs = subgraph.step
    ? `Step ${subgraph.number}, ${subgraph.step}, runs ${subgraph.first}`
    : `Subgraph ${subgraph.number} runs ${plural(subgraph.layers, "layer")}`;
  return `${runs} on ${subgraph.device}` +
    (reads.length ? ` and reads ${reads.join(" and ")}` : "");
}

function arrowHead() {
  const marker = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
  marker.append(svg("path", { d: "M0 0 8 4 0 8z" }));
  const definitions = svg("defs");
  definitions.append(marker);
  return definitions;
}

// A far reader gets its arrow past the boxes between, at their right side.
function edge(start, end, tensors, lane, distance) {
  const aside = distance > 1 && start.x === end.x;
  const from = aside ? { x: start.x + lane / 2 - 9, y: start.y - HIGH / 2 } : start;
  const to = aside ? { x: end.x + lane / 2 - 9, y: end.y + HIGH / 2 } : { x: end.x, y: end.y - 1 };
  const right = start.x + lane / 2 - 2;
  const half = (from.y + to.y) / 2;
  const path = aside
    ? `M${from.x} ${from.y}C${right} ${from.y} ${right} ${from.y} ${right} ${from.y + 12}V${to.y - 12}C${right} ${to.y} ${right} ${to.y} ${to.x + 1} ${to.y}`
    : `M${from.x} ${from.y}C${from.x} ${half} ${to.x} ${half} ${to.x} ${to.y}`;
  const line = svg("path", { d: path, "marker-end": "url(#arrow)" });
  line.append(svg("title", {}, plural(tensors, "tensor")));
  if (aside || tensors === 1) return [line];
  return [line, svg("text", { class: "soft", x: (from.x + to.x) / 2 + 6, y: half + 4 }, `${tensors}`)];
}

function box(subgraph, x, y, width, time) {
  const group = svg("g");
  group.append(svg("title", {}, subgraph.step ? said(subgraph) : `${said(subgraph)}. ${subgraph.first} … ${subgraph.last}`));
  group.append(svg("rect", { x, y, width, height: HIGH, rx: 5 }));
  const left = x + 10;
  group.append(svg("text", { class: "title", x: left, y: y + 18 }, `${subgraph.number} · ${subgraph.step ? cut(subgraph.step, 20) : plural(subgraph.layers, "layer")}`));
  const names = subgraph.layers > 1 ? `${cut(subgraph.first, 10)} … ${cut(subgraph.last, 10)}` : cut(subgraph.first, 23);
  group.append(svg("text", { class: "soft", x: left, y: y + 35 }, names));
  const facts = time ? `${seconds(time.seconds)}${time.bytes ? `, ${subgraph.step ? "makes" : "reads"} ${bytes(time.bytes)}` : ""}` : "not run yet";
  group.append(svg("text", { x: left, y: y + 52 }, facts));
  return group;
}
