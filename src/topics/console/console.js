"use strict";
// The console is a client like any other: it lists topics, reads the last records of one, and watches it live.
const SHOWN = 200;
const PAUSE_MS = 500;
const $ = (id) => document.getElementById(id);
let open = null;
let stream = null;
let turn = 0; // counts what the user chose: an answer that comes after the next choice is of no interest
let asked = 0;

const key = () => $("key").value.trim();

// A number is shown as it was stored, also where a browser would round it.
function exact(name, value, context) {
  const isOther = typeof value === "number" && context && JSON.rawJSON && String(value) !== context.source;
  return isOther ? JSON.rawJSON(context.source) : value;
}

const parse = (text) => JSON.parse(text, exact);

async function call(method, path, body) {
  const headers = { accept: "application/json" };
  if (key()) headers.authorization = "Bearer " + key();
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const answer = parse(await response.text());
  if (response.ok) return answer;
  const error = new Error(answer.error ? answer.error.message : response.statusText);
  error.isFinal = response.status < 500 && response.status !== 429;
  throw error;
}

function cell(row, text, numeric) {
  const td = row.insertCell();
  td.textContent = text;
  if (numeric) td.className = "n";
}

async function list() {
  const mine = ++asked;
  try {
    const page = await call("GET", "/v0/topics?page_size=200&prefix=" + encodeURIComponent($("prefix").value));
    if (mine !== asked) return;
    const body = $("topics");
    body.replaceChildren();
    for (const topic of page.topics) {
      const row = body.insertRow();
      cell(row, topic.topic);
      cell(row, topic.count.toLocaleString(), true);
      cell(row, topic.bytes.toLocaleString(), true);
      cell(row, topic.head_seq.toLocaleString(), true);
      row.className = topic.topic === open ? "on" : "";
      row.onclick = () => choose(topic.topic);
    }
    $("server").textContent = page.topics.length + " topics" + (page.next_cursor ? " and more" : "");
  } catch (error) {
    $("server").textContent = error.message;
  }
}

function line(kind, head, text) {
  const item = document.createElement("li");
  item.className = kind;
  const number = document.createElement("b");
  number.textContent = head;
  item.append(number, text);
  const records = $("records");
  records.prepend(item);
  while (records.children.length > SHOWN) records.lastChild.remove();
}

function add(record) {
  const when = new Date(record.$ts).toISOString().slice(0, 23).replace("T", " ");
  const tag = record.$tag === undefined ? "" : " #" + record.$tag;
  line("", record.$seq, when + tag + "  " + JSON.stringify(record.data));
}

function gap(tombstone) {
  line("gap", tombstone.gap_from + "–" + tombstone.gap_to, "lost: " + tombstone.reason);
}

async function facts(name, mine) {
  const state = await call("GET", "/v0/topics/" + encodeURIComponent(name) + "?touch=false");
  if (mine !== turn) return state;
  const seqs = state.count ? `seqs ${state.earliest_seq} to ${state.head_seq}` : `empty, next seq ${state.next_seq}`;
  const queue = state.queue ? `, ${state.queue.ready} ready, ${state.queue.in_flight} in flight` : "";
  $("facts").textContent = `${state.type}, ${state.config.durability}, ${seqs}${queue}`;
  return state;
}

function choose(name) {
  show(name);
  $("detail").scrollIntoView({ block: "nearest" });
}

async function show(name) {
  const mine = ++turn;
  open = name;
  if (stream) stream.close();
  $("detail").hidden = false;
  $("name").textContent = name;
  $("status").textContent = $("facts").textContent = "";
  $("records").replaceChildren();
  try {
    const state = await facts(name, mine);
    const start = Math.max(state.head_seq - 50, 0);
    const page = await call("POST", "/v0/topics/" + encodeURIComponent(name) + "/diff", { from_seq: start, include_tags: true });
    if (mine !== turn) return;
    if (page.tombstone) gap(page.tombstone);
    page.records.forEach(add);
    if ($("live").checked) await watch(name, page.next_from_seq, mine);
  } catch (error) {
    if (mine === turn) $("status").textContent = error.message;
  }
}

async function watch(name, cursor, mine) {
  let at = cursor;
  const session = await call("POST", "/v0/watch", { topics: { [name]: { from_seq: at } }, include_tags: true });
  if (mine !== turn) return;
  const source = (stream = new EventSource(session.stream_url + (key() ? "?token=" + encodeURIComponent(key()) : "")));
  source.onopen = () => { $("status").textContent = "live"; };
  source.onerror = () => {
    $("status").textContent = "reconnecting…";
    // A browser comes back by itself while the session lives; a server that was started anew does not know it.
    if (source.readyState === EventSource.CLOSED) again(name, () => at, mine);
  };
  source.addEventListener("record", (event) => {
    const page = parse(event.data);
    page.records.forEach(add);
    at = page.to_seq;
  });
  source.addEventListener("tombstone", (event) => {
    const tombstone = parse(event.data);
    gap(tombstone);
    at = tombstone.reason === "recreated" ? tombstone.gap_from - 1 : tombstone.gap_to;
  });
  source.addEventListener("deferred", () => { $("status").textContent = "live, delayed: the server is busy"; });
  source.addEventListener("resumed", () => { $("status").textContent = "live"; });
  source.addEventListener("topic-deleted", () => { $("status").textContent = "deleted"; source.close(); });
}

function again(name, at, mine) {
  setTimeout(async () => {
    if (mine !== turn) return;
    try {
      await watch(name, at(), mine);
    } catch (error) {
      if (mine !== turn) return;
      if (error.isFinal) $("status").textContent = error.message;
      else again(name, at, mine);
    }
  }, PAUSE_MS);
}

function refresh() {
  list();
  if (open && stream && stream.readyState === EventSource.OPEN) facts(open, turn).catch(() => {}); // the stream tells
}

$("prefix").oninput = list;
$("key").onchange = list;
$("live").onchange = () => { if (open) show(open); };
list();
setInterval(refresh, 3000);
