// One part that can't be drawn must not take the others with it.
function each(...parts) {
  for (const part of parts) try { part(); } catch (error) { console.error(error); }
}

let shown = null, arrived = 0, at = new Date(), source = null, live = false;
const now = () => performance.now() / 1000;

function show(text) {
  shown = JSON.parse(text);
  arrived = now();
  at = new Date();
  const s = shown;
  each(() => head(s), () => notices(s), () => clock(s, 0), () => chart(s.ce || []), () => workers(s, 0), () => tables(s));
}

// "Since" is when the newest status came: what is shown is of then.
function lost(why) {
  if ($("link").className !== "lost") {
    const over = shown && (shown.state === "finished" || shown.state === "draining");
    $("link").className = "lost";
    put("link", `✕ ${why} since ${at.toLocaleTimeString()}` + (over ? "; the coordinator was about to end" : "; trying again"));
    document.body.classList.add("stale");
    document.title = "✕ " + document.title;
  }
  live = false;
}

function connect() {
  if (source) source.close();
  arrived = now();
  source = new EventSource("events");
  source.addEventListener("status", (event) => {
    show(event.data);
    if (!live) {
      live = true;
      $("link").className = "live";
      document.body.classList.remove("stale");
      put("link", "● Live");
    }
  });
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) { lost("Connection lost"); return; }
    // The server answered, but not with events: too many watch, or it's starting.
    setTimeout(connect, 5000);
    fetch("status").then((answer) => answer.ok ? answer.text() : Promise.reject(answer.status))
      .then((text) => { show(text); slow(); }, () => lost("Connection lost"));
  };
}

// Too many watch: the numbers come all the same, every few seconds.
function slow() {
  live = false;
  $("link").className = "slow";
  document.body.classList.remove("stale");
  put("link", "○ Every 5 s: too many watch for more");
}

setInterval(() => {
  const passed = now() - arrived;
  // A status comes every 10 s at least. A connection that fell silent is dead.
  if (passed > 35 && source.readyState !== EventSource.CLOSED) { lost("Connection lost"); connect(); }
  else if (shown && live) each(() => clock(shown, passed), () => workers(shown, passed));
}, 1000);
addEventListener("resize", () => shown && each(() => chart(shown.ce || [])));
$("all").addEventListener("change", () => $("workers").classList.toggle("cards", $("all").checked));
connect();
