"use strict";
// All text goes into the page as textContent: names and devices are what workers say.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const ROWS = 200; // of workers; more would be slow to draw and nobody reads them
const known = (x) => typeof x === "number" && Number.isFinite(x);
const or = (x, show) => (known(x) ? show(x) : "–");
const fixed = (digits) => (x) => x.toFixed(digits);
const percent = (x) => (x > 0 && x < 0.005 ? "<1" : Math.round(100 * x)) + "\u00a0%";

function size(n) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (n >= 999.5 && unit < units.length - 1) { n /= 1000; unit += 1; }
  return (unit === 0 ? n : n.toPrecision(3)) + "\u00a0" + units[unit];
}

function span(seconds) {
  const s = Math.max(0, Math.floor(seconds)), two = (n) => String(n).padStart(2, "0");
  if (s < 60) return s + "\u00a0s";
  if (s < 3600) return Math.floor(s / 60) + "\u00a0min " + two(s % 60) + "\u00a0s";
  if (s < 86400) return Math.floor(s / 3600) + "\u00a0h " + two(Math.floor(s / 60) % 60) + "\u00a0min";
  return Math.floor(s / 86400) + "\u00a0d " + Math.floor(s / 3600) % 24 + "\u00a0h";
}

function roughly(s) {
  const [n, unit] = s < 99.5 ? [s, "s"] : s < 5970 ? [s / 60, "min"] : s < 356400 ? [s / 3600, "h"] : [s / 86400, "d"];
  return (n < 9.95 ? n.toFixed(1) : Math.round(n)) + "\u00a0" + unit;
}

const ago = (s) => (s < 60 ? span(s) : roughly(s)) + " ago";

function put(id, text) {
  const node = $(id);
  if (node.textContent !== text) node.textContent = text;
}

// A line that is there only while it says something.
function line(id, text, bad) {
  put(id, text);
  $(id).hidden = !text;
  $(id).className = bad ? "bad" : "none";
}

function listed(names, most) {
  return names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
}

// Rows that stay are kept, so that a selection outlives an event. A cell is a text,
// or {text, share, bad, soft}: share draws a bar.
function fill(id, rows) {
  const table = $(id);
  table.hidden = !rows.length;
  const body = table.tBodies[0], names = [...table.tHead.rows[0].cells];
  const roles = table.hasAttribute("role");
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, r) => {
    const row = body.rows[r] || body.insertRow();
    if (roles) row.setAttribute("role", "row");
    cells.forEach((given, c) => {
      const cell = typeof given === "object" ? given : { text: given };
      let node = row.cells[c];
      if (!node) {
        node = row.appendChild(document.createElement(c ? "td" : "th"));
        if (!c) node.scope = "row";
        if (roles) node.setAttribute("role", c ? "cell" : "rowheader");
        node.className = names[c].className;
        node.dataset.label = names[c].textContent;
        node.appendChild(document.createElement("span"));
      }
      const text = node.firstChild;
      if (text.textContent !== String(cell.text)) text.textContent = cell.text;
      text.className = cell.bad ? "bad" : cell.soft ? "soft" : "";
      if (cell.share !== undefined) {
        const track = node.children[1] || node.appendChild(document.createElement("span"));
        const bar = track.firstChild || track.appendChild(document.createElement("i"));
        track.className = "track";
        bar.style.width = 100 * Math.min(1, Math.max(0, known(cell.share) ? cell.share : 0)) + "%";
      }
    });
  });
}
