function draw(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return node;
}

function steps(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) ticks.push(i * step);
  return { ticks, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

// Runs of points without a gap: a line across a value that isn't a number would lie.
function runs(evaluations, key) {
  const found = [[]];
  for (const e of evaluations) {
    if (known(e.round) && known(e[key])) found[found.length - 1].push([e.round, e[key]]);
    else if (found[found.length - 1].length) found.push([]);
  }
  return found.filter((run) => run.length);
}

let drawn = ""; // what the chart shows

function chart(evaluations) {
  const box = $("chart"), kinds = ["chain", "ensemble"];
  const asked = JSON.stringify([evaluations, box.clientWidth]);
  if (asked === drawn) return;
  drawn = asked;
  const broken = kinds.map((kind) => runs(evaluations, "ce_" + kind)), series = broken.map((all) => all.flat());
  const points = series.flat();
  if (!points.length) {
    const none = document.createElement("p");
    none.className = "none";
    none.textContent = evaluations.length ? "No evaluation has given a number." : "No evaluation yet.";
    box.replaceChildren(none);
    return;
  }
  const wide = Math.max(260, box.clientWidth), high = wide < 500 ? 200 : 260;
  const [left, right, top, bottom] = [40, 56, 8, 24];
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  let [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  if (x0 === x1) x1 = x0 + 1;
  const pad = 0.06 * (y1 - y0) || 0.05 * Math.abs(y1) || 1;
  y0 -= pad; y1 += pad;
  const x = (v) => left + ((v - x0) / (x1 - x0)) * (wide - left - right);
  const y = (v) => top + ((y1 - v) / (y1 - y0)) * (high - top - bottom);
  const last = series.map((s) => s[s.length - 1]);
  const said = kinds.map((kind, i) => last[i] && kind + " " + last[i][1].toFixed(4)).filter(Boolean).join(", ");
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${high}`, height: high, role: "img", "aria-label": `Cross-entropy after rounds ${Math.min(...xs)} to ${Math.max(...xs)}; at the end ${said}` });
  const across = steps(y0, y1, 4);
  for (const v of across.ticks) {
    svg.append(draw("path", { class: "grid", d: `M${left} ${y(v)}H${wide - right}` }));
    svg.append(draw("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, v.toFixed(across.digits)));
  }
  for (const v of steps(x0, x1, wide < 500 ? 4 : 8).ticks.filter(Number.isInteger))
    svg.append(draw("text", { x: x(v), y: high - 6, "text-anchor": "middle" }, v));
  series.forEach((s, i) => {
    for (const run of broken[i]) svg.append(draw("polyline", { class: kinds[i], points: run.map((p) => x(p[0]).toFixed(1) + "," + y(p[1]).toFixed(1)).join(" ") }));
    for (const p of s.length > 40 ? s.slice(-1) : s) {
      const [cx, cy] = [x(p[0]), y(p[1])];
      svg.append(i ? draw("rect", { class: kinds[i], x: cx - 3, y: cy - 3, width: 6, height: 6 }) : draw("circle", { class: kinds[i], cx, cy, r: 3 }));
    }
  });
  let labels = last.map((p, i) => p && { i, text: p[1].toFixed(4), y: y(p[1]), x: x(p[0]) }).filter(Boolean).sort((a, b) => a.y - b.y);
  if (labels.length === 2 && labels[1].y - labels[0].y < 14) {
    const middle = (labels[0].y + labels[1].y) / 2; // else they lie upon each other
    labels[0].y = middle - 7; labels[1].y = middle + 7;
  }
  for (const l of labels) svg.append(draw("text", { class: "value " + kinds[l.i], x: l.x + 8, y: l.y + 4 }, l.text));
  box.replaceChildren(svg);
}
