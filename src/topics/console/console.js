"use strict";
// The console is a client like any other: it lists topics, reads the last records of one, and watches it live.
const SHOWN = 200;
const $ = (id) => document.getElementById(id);
let open = null;
let stream = null;

const key = () => $("key").value.trim();

async function call(method, path, body) {
  const headers = { accept: "application/json" };
  if (key()) headers.authorization = "Bearer " + key();
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error ? answer.error.message : response.statusText);
  return answer;
}

function cell(row, text, numeric) {
  const td = row.insertCell();
  td.textContent = text;
  if (numeric) td.className = "n";
}

async function list() {
  try {
    const page = await call("GET", "/v0/topics?page_size=200&prefix=" + encodeURIComponent($("prefix").value));
    const body = $("topics");
    body.replaceChildren();
    for (const topic of page.topics) {
      const row = body.insertRow();
      cell(row, topic.topic);
      cell(row, topic.count.toLocaleString(), true);
      cell(row, topic.bytes.toLocaleString(), true);
      cell(row, topic.head_seq.toLocaleString(), true);
      row.className = topic.topic === open ? "on" : "";
      row.onclick = () => show(topic.topic);
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

async function show(name) {
  open = name;
  if (stream) stream.close();
  $("detail").hidden = false;
  $("name").textContent = name;
  $("records").replaceChildren();
  try {
    const state = await call("GET", "/v0/topics/" + encodeURIComponent(name) + "?touch=false");
    const queue = state.queue ? `, ${state.queue.ready} ready, ${state.queue.in_flight} in flight` : "";
    $("facts").textContent = `${state.type}, ${state.config.durability}, seqs ${state.earliest_seq} to ${state.head_seq}${queue}`;
    const start = Math.max(state.head_seq - 50, 0);
    const page = await call("POST", "/v0/topics/" + encodeURIComponent(name) + "/diff", { from_seq: start, include_tags: true });
    if (page.tombstone) gap(page.tombstone);
    page.records.forEach(add);
    if ($("live").checked) await watch(name, page.next_from_seq);
  } catch (error) {
    $("status").textContent = error.message;
  }
}

async function watch(name, cursor) {
  const session = await call("POST", "/v0/watch", { topics: { [name]: { from_seq: cursor } }, include_tags: true });
  if (name !== open) return;
  stream = new EventSource(session.stream_url + (key() ? "?token=" + encodeURIComponent(key()) : ""));
  stream.onopen = () => { $("status").textContent = "live"; };
  stream.onerror = () => { $("status").textContent = "reconnecting…"; };
  stream.addEventListener("record", (event) => JSON.parse(event.data).records.forEach(add));
  stream.addEventListener("tombstone", (event) => gap(JSON.parse(event.data)));
  stream.addEventListener("topic-deleted", () => { $("status").textContent = "deleted"; stream.close(); });
}

$("prefix").oninput = list;
$("key").onchange = list;
$("live").onchange = () => { if (open) show(open); };
list();
setInterval(list, 3000);
