"use strict";
// Numbers as people read them, and rates and quantiles from two documents. Nothing here touches the
// page.

const NONE = "–";

const three = (value) => {
  if (value >= 99.95) return Math.round(value).toLocaleString("en");
  return value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
};
const known = (value) => typeof value === "number" && Number.isFinite(value);

const count = (value) => (known(value) ? Math.round(value).toLocaleString("en") : NONE);
const rate = (value) => (!known(value) ? NONE : value === 0 ? "0" : value < 0.005 ? "<0.01" : three(value));

function seconds(value) {
  if (!known(value)) return NONE;
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${three(value * 1e6)} µs`;
  return value < 1 ? `${three(value * 1e3)} ms` : `${three(value)} s`;
}

function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at ? three(value) : value} ${units[at]}`;
}

function duration(value) {
  if (!known(value)) return NONE;
  const steps = [["d", 86400], ["h", 3600], ["min", 60]];
  for (let at = 0; at < steps.length; at += 1) {
    const [unit, size] = steps[at];
    if (value < size) continue;
    const rest = Math.floor((value % size) / (steps[at + 1] ? steps[at + 1][1] : 1));
    return `${Math.floor(value / size)} ${unit} ${rest} ${steps[at + 1] ? steps[at + 1][0] : "s"}`;
  }
  return `${Math.max(0, Math.floor(value))} s`;
}

const sum = (values) => Object.values(values).reduce((all, each) => all + each, 0);
const failures = (requests) => requests.failed + requests.expired;

// What was counted between two documents. null if something began to count anew meanwhile.
function counted(now, before) {
  return before === undefined || now < before ? null : now - before;
}

function observed(now, before) {
  if (!before || now.count < before.count) return null;
  const counts = now.counts.map((value, at) => value - before.counts[at]);
  return { count: now.count - before.count, sum: now.sum - before.sum, counts };
}

// The same as Prometheus's histogram_quantile: it assumes that values lie evenly in a bucket.
function quantile(histogram, bounds, part) {
  if (!histogram || !histogram.count) return null;
  let left = part * histogram.count;
  for (let at = 0; at < histogram.counts.length; at += 1) {
    const here = histogram.counts[at];
    if (here && left <= here) {
      if (at >= bounds.length) return bounds[bounds.length - 1];
      const low = at ? bounds[at - 1] : 0;
      return low + ((bounds[at] - low) * left) / here;
    }
    left -= here;
  }
  return bounds[bounds.length - 1];
}

// The documents of the last seconds, and the rates that follow from them.
class Past {
  constructor(windowSeconds, points) {
    this.windowSeconds = windowSeconds;
    this.points = points;
    this.clear();
  }

  clear() {
    this.documents = [];
    this.rates = new Map();
  }

  add(document) {
    const last = this.documents[this.documents.length - 1];
    if (last && (last.server.started !== document.server.started || document.time <= last.time)) this.clear();
    this.documents.push(document);
    const oldest = document.time - this.windowSeconds;
    while (this.documents.length > 2 && this.documents[1].time <= oldest) this.documents.shift();
    this.touched = new Set();
  }

  get now() { return this.documents[this.documents.length - 1]; }
  get before() { return this.documents.length > 1 ? this.documents[0] : null; }
  get seconds() { return this.before ? this.now.time - this.before.time : 0; }

  // The rate of a counter by now, and the rates before, for a small line.
  rate(name, read) {
    const value = this.before ? counted(read(this.now), read(this.before)) : null;
    const now = value === null ? null : value / this.seconds;
    const last = this.documents.length > 1 ? this.documents[this.documents.length - 2] : null;
    const step = last ? counted(read(this.now), read(last)) : null;
    const line = this.rates.get(name) || [];
    if (!this.touched.has(name)) {
      this.touched.add(name);
      line.push(step === null ? 0 : step / (this.now.time - last.time));
      if (line.length > this.points) line.shift();
      this.rates.set(name, line);
    }
    return { now, line };
  }

  // Forgets the lines of what is not there any more.
  sweep() {
    for (const name of this.rates.keys()) if (!this.touched.has(name)) this.rates.delete(name);
  }
}
