// Tables whose rows keep their place in the page while their numbers change, so that the focus, a
// selection and a screen reader's position stay. Text is always set as text, never as HTML.

const byId = (id) => document.getElementById(id);

function node(kind, className = "", text = null) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  return made;
}

function say(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

// The name of a device, which may break after its commas and colons.
function sayDevice(place, text) {
  if (place.textContent === text) return;
  place.replaceChildren(...text.split(/(?<=[,:])/).flatMap((part, at) => (at ? [node("wbr"), part] : [part])));
}

function dress(place, className) {
  if (place.className !== className) place.className = className;
}

// The child of a class, made when it is first needed.
function child(place, kind, className) {
  const name = className.split(" ")[0];
  for (const each of place.children) if (each.classList.contains(name)) return each;
  const made = node(kind, className);
  place.append(made);
  return made;
}

// Puts the nodes into `place` in this order, and moves none that is there already.
function arrange(place, nodes) {
  let at = place.firstChild;
  for (const each of nodes) {
    if (each === at) at = at.nextSibling;
    else place.insertBefore(each, at);
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}

class Table {
  // A column: label, class ("n" for numbers, "full" for the width of a phone), show(cell, row).
  constructor(table, columns, key, detail = null) {
    this.columns = columns;
    this.key = key;
    this.detail = detail;
    this.rows = new Map();
    this.opened = new Set();
    table.classList.add("wide");
    const head = node("tr");
    head.setAttribute("role", "row");
    for (const { label, className } of columns) {
      const cell = node("th", className, label);
      cell.scope = "col";
      cell.setAttribute("role", "columnheader");
      head.append(cell);
    }
    const top = node("thead");
    top.setAttribute("role", "rowgroup");
    top.append(head);
    this.body = node("tbody");
    this.body.setAttribute("role", "rowgroup");
    table.append(top, this.body);
    this.table = table;
  }

  update(rows) {
    const nodes = [];
    const seen = new Set();
    for (const row of rows) {
      const key = this.key(row);
      seen.add(key);
      const { line, cells } = this.rows.get(key) || this.make(key);
      this.columns.forEach(({ show }, at) => show(cells[at], row));
      nodes.push(line);
      if (this.opened.has(key)) nodes.push(this.inside(key, row));
    }
    for (const key of [...this.rows.keys()]) if (!seen.has(key)) this.rows.delete(key);
    arrange(this.body, nodes);
    this.table.hidden = !rows.length;
    this.last = rows;
  }

  make(key) {
    const line = node("tr", "row");
    line.setAttribute("role", "row");
    const cells = this.columns.map(({ label, className }, at) => {
      const cell = node(at ? "td" : "th", className);
      if (!at) cell.scope = "row";
      cell.setAttribute("role", at ? "cell" : "rowheader");
      cell.dataset.label = label;
      line.append(cell);
      return cell;
    });
    const made = { line, cells, detail: null };
    this.rows.set(key, made);
    return made;
  }

  toggle(key) {
    if (!this.opened.delete(key)) this.opened.add(key);
    this.update(this.last);
  }

  inside(key, row) {
    const made = this.rows.get(key);
    if (!made.detail) {
      made.detail = node("tr", "inside");
      made.detail.setAttribute("role", "row");
      const cell = node("td");
      cell.setAttribute("role", "cell");
      cell.colSpan = this.columns.length;
      made.detail.append(cell);
    }
    const selection = document.getSelection();
    const reading = selection && !selection.isCollapsed && selection.containsNode(made.detail, true);
    if (!reading) this.detail(made.detail.firstChild, row);
    return made.detail;
  }

  // A button that opens the row's details.
  opener(cell, row, text) {
    const key = this.key(row);
    let button = cell.querySelector("button");
    if (!button) {
      button = child(cell, "button", "open name");
      button.type = "button";
      button.addEventListener("click", () => this.toggle(key));
    }
    say(button, text);
    button.setAttribute("aria-expanded", String(this.opened.has(key)));
  }
}

// A list of terms. Each entry: [term, text, class, line], where the last two may be missing.
function facts(list, entries) {
  const rows = new Map([...list.children].map((each) => [each.firstChild.textContent, each]));
  arrange(list, entries.map(([term, text, className = "", line = null]) => {
    const row = rows.get(term) || node("div");
    if (!row.firstChild) {
      row.append(node("dt", "", term), node("dd"));
      if (line) row.append(sparkline());
    }
    say(row.children[1], text);
    dress(row.children[1], className);
    if (line) drawLine(row.children[2], line, POINTS);
    return row;
  }));
}

function meter(cell, part, whole) {
  const bar = child(cell, "span", "bar");
  bar.hidden = !known(part) || !known(whole) || !whole;
  bar.setAttribute("aria-hidden", "true");
  const inner = child(bar, "i", "filled");
  inner.style.width = `${bar.hidden ? 0 : Math.min(100, (100 * part) / whole)}%`;
}

function number(cell, text, empty = text === NONE) {
  say(child(cell, "span", "value"), text);
  cell.classList.toggle("empty", empty);
}

function withLine(cell, { now, line }) {
  if (!cell.querySelector("svg")) cell.prepend(sparkline());
  drawLine(cell.querySelector("svg"), line, POINTS);
  number(cell, rate(now), false);
}
