// The parts of the page. Rounds are counted as on the terminals, where the first is 1;
// a status counts from 0, so its round is also how many are done.
const SAYS = {
  waiting: () => "Waiting for workers", open: (s) => `Round ${s.round + 1} is open`, closing: (s) => `Closing round ${s.round + 1}`,
  finished: () => "Finished", draining: () => "Draining: no new work is given",
};
const MARKS = { waiting: "○", fetching: "↓", training: "●", sending: "↑", late: "▲", gone: "✕", starting: "○" };
const BUSY = new Set(["fetching", "training", "sending"]);
const PATIENT = 5; // seconds of a round before it says whom it waits for
const JUST = 600; // seconds that somebody who is gone is looked for

const blockOf = (w) => "block " + or(w.block, String);
const place = (w) => (known(w.block) ? w.block + ", " + or(w.replica, String) : "none");
const slot = (w) => (known(w.block) ? 1e6 * w.block + (w.replica || 0) : Infinity);
const spent = (w) => Object.values(w.seconds || {}).reduce((a, b) => a + b, 0);
const sentBy = (w) => (w.accepted || 0) + (w.late || 0) + (w.rejected || 0);

// A process that has come and hasn't asked for work yet holds no lease: it compiles.
function stateOf(w) {
  const fresh = w.state === "gone" && known(w.seen_seconds) && w.seen_seconds < JUST;
  return fresh && !sentBy(w) && !spent(w) && w.device ? "starting" : w.state;
}

// Late first, then who is just gone, those who are here, and last who is long gone.
function rank(w) {
  const state = stateOf(w);
  if (state === "late") return 0;
  if (state !== "gone") return 2;
  return known(w.seen_seconds) && w.seen_seconds < JUST ? 1 : 3;
}

function head(s) {
  put("name", s.name || "spheroid");
  put("which", [s.size, s.run && "run " + String(s.run).slice(0, 8)].filter(Boolean).join(" · "));
  put("state", (SAYS[s.state] || (() => String(s.state)))(s));
  line("why", s.why || "");
  put("rounds-text", `${or(s.round, String)} of ${or(s.rounds, String)} rounds done${toGo(s)}`);
  $("rounds").max = s.rounds || 1;
  $("rounds").value = s.round || 0;
  const mark = s.writable === false ? "! " : "";
  document.title = `${mark}${or(s.round, String)}/${or(s.rounds, String)} · ${s.state} · ${s.name || "spheroid"}`;
  const blocks = s.blocks || [], total = (key) => blocks.reduce((sum, b) => sum + (b[key] || 0), 0);
  put("heard", s.state === "open" || s.state === "closing" ? total("heard") + " of " + Math.max(total("workers"), total("heard")) : "–");
  for (const kind of ["chain", "ensemble"]) {
    const { value, trend, bad } = told(s.ce || [], "ce_" + kind);
    put("ce-" + kind, value);
    $("ce-" + kind).className = value === ABSENT ? "bad" : "";
    put("trend-" + kind, trend);
    $("trend-" + kind).className = bad ? "bad" : "";
  }
  put("up", or((s.bytes || {}).up, size));
  put("down", or((s.bytes || {}).down, size));
}

function toGo(s) {
  const took = (s.rounds_log || []).slice(-9).map((r) => r.seconds).filter(known).sort((a, b) => a - b);
  const left = s.rounds - s.round;
  if (!took.length || !(left > 0) || !["open", "closing"].includes(s.state)) return "";
  return `, about ${roughly(took[took.length >> 1] * left)} to go`;
}

const ABSENT = "not finite";

// The newest value, and whether it falls.
function told(evaluations, key) {
  const newest = evaluations[evaluations.length - 1] || {};
  if (newest[key] === null) return { value: ABSENT, trend: "after round " + newest.round, bad: true };
  if (!known(newest[key])) return { value: "–", trend: "" };
  const value = newest[key], before = evaluations.slice(0, -1).filter((e) => known(e[key]));
  if (!before.length) return { value: value.toFixed(4), trend: `after round ${newest.round}` };
  const last = before[before.length - 1], best = before.reduce((a, b) => (b[key] < a[key] ? b : a));
  const change = value - last[key], moved = Math.abs(change).toFixed(4), arrow = change < 0 ? "↓" : "↑";
  const since = Number(moved) ? `${arrow} ${moved} since round ${last.round}` : `as after round ${last.round}`;
  const bad = value > 1.05 * best[key];
  return { value: value.toFixed(4), trend: since + (value > best[key] ? `; best ${best[key].toFixed(4)}` : ""), bad };
}

// What the clock alone changes.
function clock(s, passed) {
  const opened = (s.opened_seconds || 0) + passed, left = s.deadline - opened;
  const timed = s.state === "open" && known(s.deadline);
  // While a round is closed the bar stays where it is, or the page would jump.
  $("left").hidden = !timed && !(s.state === "closing" && known(s.deadline));
  $("left").max = s.deadline || 1;
  $("left").value = timed ? Math.max(0, left) : 0;
  let text = s.state === "closing" ? (s.writable === false ? "Can't be saved yet" : "Takes the step and saves it") : s.state === "open" ? `Open for ${span(opened)}; there is no deadline` : "";
  if (timed) text = left > 0 ? `Deadline: ${span(Math.ceil(left))} left of ${span(s.deadline)}` : "The deadline has passed";
  put("left-text", text);
  $("left-text").hidden = !text;
  put("time", or(s.time, (t) => span(t + passed)));
  problems(s, passed);
}

// Who keeps the round waiting, and what an operator has to do something about.
function notices(s) {
  const all = s.workers || [], states = all.map(stateOf), newest = (s.ce || [])[(s.ce || []).length - 1] || {};
  const alerts = [];
  if (s.writable === false) alerts.push("The coordinator's disk refuses to write: make room. What was accepted is kept, and it goes on by itself.");
  if (newest.ce_chain === null || newest.ce_ensemble === null) alerts.push(`The evaluation after round ${newest.round} isn't a finite number: has the model diverged?`);
  const list = $("alerts"), shown = [...list.children].map((item) => item.textContent);
  if (shown.join("\n") !== alerts.join("\n")) list.replaceChildren(...alerts.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
  const late = all.filter((w) => w.state === "late").map((w) => `${w.name} (${blockOf(w)})`);
  const gone = s.state === "finished" ? [] : all.filter((w) => rank(w) === 1).map((w) => w.name);
  const words = [late.length && "Late now: " + listed(late, 8), gone.length && "Gone: " + listed(gone, 8)].filter(Boolean);
  line("late", words.join(". "), true);
  const refused = all.filter((w) => w.reason).map((w) => `${w.name}: ${w.reason}`);
  line("refused", refused.length ? "Refused: " + listed(refused, 3) : "", true);
  // Not at once: when a round opens it would be everybody.
  const awaited = s.state === "open" && s.opened_seconds >= PATIENT ? all.filter((w, i) => BUSY.has(states[i])) : [];
  line("awaited", awaited.length ? "Awaited: " + listed(awaited.map((w) => `${w.name} (${blockOf(w)}, ${w.state})`), 6) : "");
  const of = s.worker_states || count(states), sum = Object.values(of).reduce((a, b) => a + b, 0);
  put("here", sum ? `${sum - (of.gone || 0) - (of.starting || 0)} of ${sum} workers are here` : "");
  put("nobody", sum ? (late.length ? "" : "Nobody is late.") : "No worker has come yet.");
  $("nobody").hidden = late.length > 0;
  put("more", sum > Math.min(all.length, ROWS) ? `${sum - Math.min(all.length, ROWS)} more are in /status.` : "");
}

function count(words) {
  const found = {};
  for (const word of words) found[word] = (found[word] || 0) + 1;
  return found;
}

function workers(s, passed) {
  const all = [...(s.workers || [])], over = s.state === "finished";
  all.sort((a, b) => rank(a) - rank(b) || slot(a) - slot(b) || (a.name < b.name ? -1 : 1));
  fill("workers", all.slice(0, ROWS).map((w) => {
    const sent = sentBy(w), share = known(w.participation) ? w.participation : sent ? w.accepted / sent : null;
    const state = stateOf(w), time = spent(w), { train = 0, fetch = 0, send = 0 } = w.seconds || {};
    const parts = [train, fetch + send, time - train - fetch - send].map((t) => Math.round((100 * t) / time));
    return [
      w.name, { text: (MARKS[state] || "") + "\u00a0" + state, bad: state === "late" || (rank(w) === 1 && !over), soft: rank(w) === 3 }, place(w),
      or(w.seen_seconds, (t) => ago(t + passed)), { text: or(share, percent), share },
      or(w.accepted, String), { text: or(w.late, String), bad: w.late > 0 }, { text: or(w.rejected, String), bad: w.rejected > 0 },
      or(w.age, fixed(1)), or(w.up, size), or(w.down, size), time > 0 ? parts.join(" / ") + "\u00a0%" : "–", w.device || "–",
    ];
  }));
}

// Updates in time of those there were places for, and late ones that counted, too.
function heardIn(r) {
  const timely = r.timely ?? r.heard, late = r.heard - timely;
  return { text: or(timely, String) + " of " + or(r.expected, String) + (late > 0 ? ", " + late + " late" : ""), bad: timely < r.expected };
}

function tables(s) {
  const of = (a, b) => or(a, String) + " of " + or(b, String), busy = s.state === "open";
  fill("blocks", (s.blocks || []).map((b) => [
    b.block, { text: or(b.participation, percent), share: b.participation },
    busy && b.workers === 0 && !b.heard ? { text: "nobody there", bad: true } : of(b.heard, b.workers),
    known(b.last_trained) && b.last_trained >= 0 ? "round " + (b.last_trained + 1) : "never",
  ]));
  const ages = s.staleness || [], sum = ages.reduce((a, b) => a + b, 0);
  const rows = ages.map((n, age) => [age, { text: percent(n / sum), share: n / sum }, n]);
  fill("ages", sum ? rows.filter((row) => ages.length <= 12 || row[2] > 0) : []);
  line("ages-none", sum ? "" : "No update was accepted yet.");
  const log = (s.rounds_log || []).slice(-20).reverse();
  fill("log", log.map((r) => [
    r.round, or(r.seconds, roughly), heardIn(r),
    or(r.age, fixed(1)), or(r.bytes_up, size), or(r.bytes_down, size),
  ]));
  line("log-none", log.length ? "" : "No round is done yet.");
  const number = (x) => (x === null ? ABSENT : or(x, fixed(4)));
  fill("ce", (s.ce || []).slice(-20).reverse().map((e) => [e.round, number(e.ce_chain), number(e.ce_ensemble)]));
  $("values").hidden = !(s.ce || []).length;
}

// The newest first; all but three of them folded away.
function problems(s, passed) {
  const all = [...(s.problems || [])].reverse(), first = 3;
  line("fine", all.length ? "" : "None.");
  entries("problems", all.slice(0, first), s.time + passed);
  entries("older", all.slice(first), s.time + passed);
  $("older-problems").hidden = all.length <= first;
  put("older-count", `${all.length - first} older`);
}

function entries(id, rows, time) {
  const list = $(id);
  while (list.children.length > rows.length) list.lastChild.remove();
  rows.forEach((p, i) => {
    let item = list.children[i];
    if (!item) {
      item = list.appendChild(document.createElement("li"));
      item.append(document.createElement("span"), " ", document.createElement("bdi"));
    }
    const [when, what] = item.children, text = known(p.time) && known(time) ? ago(Math.max(0, time - p.time)) : "";
    if (when.textContent !== text) when.textContent = text;
    if (what.textContent !== p.text) what.textContent = p.text;
  });
}
