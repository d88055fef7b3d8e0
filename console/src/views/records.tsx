/** The records of a topic, newest on top: seek, filter, follow, look into one, take it elsewhere. */
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useMay } from "../lib/access.ts";
import { ApiError, diff, type RecordRow, type TopicState, watch, type Watcher } from "../lib/api.ts";
import { useFeatures } from "../lib/features.ts";
import { bytes, clock, count, dateTime, day, plural } from "../lib/format.ts";
import { preview } from "../lib/json.ts";
import { useDebounced } from "../lib/poll.ts";
import { go, href } from "../lib/route.ts";
import { type Line, parseTarget, RecordWindow, seqAtTime } from "../lib/window.ts";
import { Badge, Button, Empty, Search, Trouble } from "../ui/bits.tsx";
import { JsonView } from "../ui/jsonview.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { copyText, say, sayError } from "../ui/toast.tsx";
import { SendDialog } from "./send.tsx";
import { Snippets } from "./snippets.tsx";

const ROW = 30;
const EXPORT_MAX = 100_000;

const LOST: Record<string, string> = {
  cap: "let go by the topic's cap",
  ttl: "older than the topic's TTL",
  mixed: "let go by cap and TTL",
  restart: "not yet synced when the server stopped",
  source_trim: "gone from the router's source before they were copied",
  recreated: "the topic was deleted and made anew",
  from_seq_too_old: "no longer kept",
};

type Live = "live" | "connecting" | "deferred" | "deleted" | "off";

interface Loaded {
  lines: Line[]; // newest first
  atHead: boolean;
  hasOlder: boolean;
  head: number;
}

/** The window on the topic, what streams into it, and what the user did to it. */
function useRecords(name: string, head: number, wanted: number | null, options: Record<string, unknown>) {
  const [loaded, setLoaded] = useState<Loaded | null>(null);
  const [error, setError] = useState<ApiError>();
  const [live, setLive] = useState<Live>("connecting");
  const [follow, setFollow] = useState(wanted === null);
  const [ready, setReady] = useState<RecordWindow | null>(null);
  const [start, setStart] = useState<{ at: number | null; turn: number }>({ at: wanted, turn: 0 });
  const window = useRef<RecordWindow | null>(null);
  const busy = useRef(false);
  const holds = useRef(false); // the user reads further down: what comes is counted, not shown
  const filter = JSON.stringify(options);

  const show = (): void => {
    const now = window.current;
    if (now) setLoaded({ lines: now.lines.toReversed(), atHead: now.isAtHead, hasOlder: now.hasOlder, head: now.head });
  };
  const failed = (problem: unknown): void => {
    if (problem instanceof ApiError) setError(problem);
    else if ((problem as Error).name !== "AbortError") throw problem;
  };
  useEffect(() => {
    const ended = new AbortController();
    const made = new RecordWindow(name, options, ended.signal);
    window.current = made;
    holds.current = false;
    (start.at === null ? made.newest(head) : made.around(start.at)).then(
      () => {
        setError(undefined);
        setReady(made);
        show();
      },
      (problem: unknown) => ended.signal.aborted || failed(problem),
    );
    return () => ended.abort();
  }, [name, start, filter]);
  useEffect(() => {
    if (!ready || !follow || !ready.isAtHead) return;
    const ended = new AbortController();
    let frame = 0;
    const soon = (): void => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        show();
      });
    };
    const watcher: Watcher = {
      records: (rows, upTo) => {
        if (holds.current) ready.head = Math.max(ready.head, upTo);
        else ready.appendRecords(rows, rows.at(-1)?.seq ?? ready.upTo);
        soon();
      },
      gap: (gap) => {
        if (!holds.current) ready.appendGap(gap);
        soon();
      },
      status: (text) => ended.signal.aborted || setLive(text),
    };
    watch(name, ready.upTo, watcher, ended.signal).catch((problem: unknown) => ended.signal.aborted || failed(problem));
    return () => {
      ended.abort();
      cancelAnimationFrame(frame);
    };
  }, [ready, follow]);

  const more = async (which: "older" | "newer"): Promise<void> => {
    const now = window.current;
    if (!now || busy.current) return;
    busy.current = true;
    try {
      await now[which]();
      if (now === window.current) show();
    } catch (problem) {
      failed(problem);
    } finally {
      busy.current = false;
    }
  };
  return {
    loaded,
    error,
    live,
    follow,
    more,
    hold: (on: boolean): void => {
      holds.current = on;
    },
    isHeld: (): boolean => holds.current,
    find: (seq: number): RecordRow | undefined => window.current?.find(seq),
    has: (seq: number): boolean => window.current?.has(seq) ?? false,
    pause: (): void => setFollow(false),
    seek: (at: number | null, following: boolean): void => {
      setLoaded(null); // what is shown belongs to the old place,
      window.current = null; // and so does what its stream still brings
      setFollow(following);
      setStart({ at, turn: start.turn + 1 });
    },
    turn: start.turn,
    sought: start.at,
  };
}

export function Records({ state, query }: { state: TopicState; query: URLSearchParams }): JSX.Element {
  const name = state.topic;
  const picked = query.has("seq") ? Number(query.get("seq")) : null;
  const [tag, setTag] = useState(query.get("tag") ?? "");
  const [text, setText] = useState(query.get("q") ?? "");
  const wantedTag = useDebounced(tag);
  const features = useFeatures();
  const records = useRecords(name, state.head_seq, picked, features.readsByTag && wantedTag ? { tag: wantedTag } : {});
  const { loaded } = records;
  const [snippets, setSnippets] = useState(false);
  const wantedText = useDebounced(text).toLowerCase();
  const to = (change: Record<string, string | number | null>): string => href(["topics", name], { seq: picked, tag: wantedTag, q: wantedText, ...change });

  useEffect(() => go(to({}), true), [wantedTag, wantedText]);
  useEffect(() => {
    if (picked !== null && loaded && !records.has(picked)) records.seek(picked, false);
  }, [picked]);

  const lines = useMemo(() => {
    if (!loaded) return [];
    if (!wantedTag && !wantedText) return loaded.lines;
    const matches = tagMatcher(wantedTag);
    return loaded.lines.filter(({ record }) => !record || (matches(record.tag) && (!wantedText || contains(record, wantedText))));
  }, [loaded, wantedTag, wantedText]);
  const sought = records.sought;
  const reveal = sought === null ? -1 : lines.findLastIndex((line) => line.seq >= sought);
  const select = (line: Line): void => {
    if (line.record) go(to({ seq: line.seq === picked ? null : line.seq }), picked !== null);
  };
  const record = picked === null ? undefined : records.find(picked);
  const waiting = loaded && records.isHeld() ? loaded.head - (loaded.lines[0]?.seq ?? 0) : 0;
  return (
    <>
      <Toolbar state={state} records={records} tag={tag} setTag={setTag} text={text} setText={setText} onSnippets={() => setSnippets(true)} lines={lines} />
      <Trouble error={records.error} />
      <div class="records">
        <div class="records-list">
          {waiting > 0 && (
            <button type="button" class="new-pill" onClick={() => records.seek(null, true)}>
              {plural(waiting, "new record")}
            </button>
          )}
          <Table
            label="Records"
            rows={lines}
            columns={COLUMNS}
            rowKey={(line) => (line.gap ? `gap-${line.seq}` : line.seq)}
            selected={picked}
            onOpen={select}
            rowHeight={ROW}
            rowClass={(line) => (line.gap ? "gap" : "")}
            resetKey={records.turn}
            reveal={reveal}
            keepPlace
            onRange={(first, last, atTop) => {
              records.hold(!atTop);
              if (loaded?.hasOlder && last >= lines.length - 40) void records.more("older");
              if (loaded && !loaded.atHead && !records.follow && first < 20) void records.more("newer");
            }}
            empty={loaded && <Empty icon="topics" title={loaded.lines.length ? "Nothing loaded matches" : "No records here"}>{loaded.lines.length > 0 && <p>Filters look at what is loaded: {plural(loaded.lines.length, "record")}.</p>}</Empty>}
          />
        </div>
        {record && <Detail topic={name} record={record} onClose={() => go(to({ seq: null }), true)} />}
        {picked !== null && loaded && !record && records.has(picked) && (
          <p class="note pad" role="status">
            There is no record with seq {count(picked)}: it was deleted, or is not kept any more.
          </p>
        )}
        {snippets && <Snippets topic={name} after={Math.max(0, (lines.at(-1)?.seq ?? 1) - 1)} onClose={() => setSnippets(false)} />}
      </div>
    </>
  );
}

/** `x` is the tag itself, `x*` its beginning: as in predicates of the API. */
function tagMatcher(wanted: string): (tag: string | undefined) => boolean {
  if (!wanted) return () => true;
  if (wanted.endsWith("*")) return (tag) => tag !== undefined && tag.startsWith(wanted.slice(0, -1));
  return (tag) => tag === wanted;
}

const contains = (record: RecordRow, text: string): boolean => record.data.toLowerCase().includes(text) || (record.meta ?? "").toLowerCase().includes(text) || (record.tag ?? "").toLowerCase().includes(text) || (record.node ?? "").toLowerCase().includes(text);

interface ToolbarProps {
  state: TopicState;
  records: ReturnType<typeof useRecords>;
  tag: string;
  setTag: (text: string) => void;
  text: string;
  setText: (text: string) => void;
  onSnippets: () => void;
  lines: Line[];
}

function Toolbar({ state, records, tag, setTag, text, setText, onSnippets, lines }: ToolbarProps): JSX.Element {
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const { live, follow } = records;
  const seek = async (event: Event): Promise<void> => {
    event.preventDefault();
    const target = parseTarget(typed);
    if (!target) return say("A seq (1200), the last so many (-50), a time (14:30, 2026-11-18 14:30) or an age (10m)", true);
    const { earliest_seq: earliest, head_seq: head } = state;
    try {
      if ("seq" in target) records.seek(target.seq, false);
      else if ("last" in target) records.seek(Math.max(earliest, head - target.last + 1), false);
      else records.seek(await seqAtTime(state.topic, target.ts, earliest, head, new AbortController().signal), false);
    } catch (error) {
      sayError(error);
    }
  };
  const save = async (): Promise<void> => {
    setBusy(true);
    try {
      await exportLines(state, lines);
    } catch (error) {
      sayError(error);
    }
    setBusy(false);
  };
  const liveText = { live: "Live", connecting: "Connecting", deferred: "Live, delayed: the server is busy", deleted: "Deleted", off: "Paused" }[follow ? live : "off"];
  return (
    <div class="toolbar" role="toolbar" aria-label="Records">
      <button type="button" class={`live is-${follow ? live : "off"}`} aria-pressed={follow} onClick={() => (follow ? records.pause() : records.seek(null, true))} title={follow ? "Pause" : "Follow live"}>
        <i class="dot" />
        {liveText}
      </button>
      <form class="seek" onSubmit={seek}>
        <input value={typed} placeholder="Seek: seq, -50, 14:30, 10m" aria-label="Seek to a seq, a time or an age" spellcheck={false} autocomplete="off" onInput={(event) => setTyped(event.currentTarget.value)} />
        <Button type="submit">Go</Button>
        <Button kind="quiet" onClick={() => records.seek(state.earliest_seq, false)} title="The oldest record">
          Oldest
        </Button>
        <Button kind="quiet" onClick={() => records.seek(null, true)} title="The newest record">
          Newest
        </Button>
      </form>
      <input class="tag-filter" value={tag} placeholder="Tag, or tag*" aria-label="Filter by tag" spellcheck={false} autocomplete="off" onInput={(event) => setTag(event.currentTarget.value)} />
      <Search value={text} label="Text in what is loaded" onInput={setText} />
      <span class="grow" />
      <Button icon="code" kind="quiet" label="As curl, Python or Spark" onClick={onSnippets} />
      <Button icon="download" kind="quiet" label="Export as JSON lines" disabled={busy} onClick={() => void save()} />
    </div>
  );
}

const exported = ({ seq, ts, tag, node, data, meta }: RecordRow): string =>
  `{"$seq":${seq},"$ts":${ts}${node === undefined ? "" : `,"$node":${JSON.stringify(node)}`}${tag === undefined ? "" : `,"$tag":${JSON.stringify(tag)}`},"data":${data}${meta === undefined ? "" : `,"meta":${meta}`}}\n`;

/** What is shown, oldest first; without a filter on to the head. Payloads are byte for byte what is stored. */
async function exportLines(state: TopicState, lines: Line[]): Promise<void> {
  const parts = lines.toReversed().flatMap(({ record }) => (record ? [exported(record)] : []));
  let at = lines[0]?.seq ?? 0;
  while (parts.length < EXPORT_MAX && at && at < state.head_seq) {
    const page = await diff(state.topic, at, { limit: 1000, max_batch_bytes: 8 << 20 });
    parts.push(...page.rows.map(exported));
    if (page.caught_up || page.next_from_seq <= at) break;
    at = page.next_from_seq;
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts, { type: "application/x-ndjson" }));
  link.download = `${state.topic.replaceAll(":", "_")}.jsonl`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  say(`${plural(parts.length, "record")} exported`);
}

const COLUMNS: Column<Line>[] = [
  { key: "seq", title: "Seq", width: "minmax(72px, 96px)", render: (line) => (line.gap ? <b>lost</b> : count(line.seq)) },
  { key: "time", title: "Time", width: "108px", from: 480, render: ({ record }) => (record ? <time title={dateTime(record.ts)}>{clock(record.ts)}</time> : "") },
  { key: "tag", title: "Tag", width: "minmax(60px, 150px)", from: 700, render: ({ record }) => record?.tag !== undefined && <span class="tag">{preview(record.tag, 60)}</span> },
  {
    key: "data",
    title: "Data",
    width: "minmax(0, 1fr)",
    render: ({ record, gap }) =>
      gap ? (
        <span>
          {gap.gap_to > gap.gap_from ? `${count(gap.gap_from)} – ${count(gap.gap_to)}, ${plural(gap.gap_to - gap.gap_from + 1, "record")}: ` : `${count(gap.gap_from)}: `}
          {LOST[gap.reason] ?? gap.reason}
        </span>
      ) : (
        record && <span class="mono">{preview(record.data)}</span>
      ),
  },
];

function Detail({ topic, record, onClose }: { topic: string; record: RecordRow; onClose: () => void }): JSX.Element {
  const may = useMay();
  const [resending, setResending] = useState(false);
  const [snippets, setSnippets] = useState(false);
  useEffect(() => {
    const closed = (event: KeyboardEvent): void => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) onClose();
    };
    addEventListener("keydown", closed);
    return () => removeEventListener("keydown", closed);
  });
  const link = location.href.split("#")[0] + href(["topics", topic], { seq: record.seq });
  return (
    <aside class="detail" aria-label={`Record ${record.seq}`}>
      <header>
        <h2>Record {count(record.seq)}</h2>
        <span class="grow" />
        <Button icon="link" kind="quiet" label="Copy a link to this record" onClick={() => void copyText(link, "Link")} />
        <Button icon="copy" kind="quiet" label="Copy the data" onClick={() => void copyText(record.data, "Data")} />
        <Button icon="code" kind="quiet" label="As curl, Python or Spark" onClick={() => setSnippets(true)} />
        {may("write") && <Button icon="retry" kind="quiet" label="Send it again" onClick={() => setResending(true)} />}
        <Button icon="close" kind="quiet" label="Close" onClick={onClose} />
      </header>
      <div class="detail-body" tabIndex={0} role="region" aria-label="Contents">
        <dl>
          <dt>Time</dt>
          <dd>
            {day(record.ts)} {clock(record.ts)}
          </dd>
          {record.tag !== undefined && (
            <>
              <dt>Tag</dt>
              <dd>
                <span class="tag">{preview(record.tag, 300)}</span>
              </dd>
            </>
          )}
          {record.node !== undefined && (
            <>
              <dt>Node</dt>
              <dd>{preview(record.node, 200)}</dd>
            </>
          )}
          <dt>Size</dt>
          <dd>{bytes(new Blob([record.data]).size)}</dd>
        </dl>
        <h3>Data</h3>
        <JsonView key={record.seq} text={record.data} />
        {record.meta !== undefined && (
          <>
            <h3>
              Meta <Badge>{bytes(record.meta.length)}</Badge>
            </h3>
            <JsonView key={`m${record.seq}`} text={record.meta} />
          </>
        )}
      </div>
      {resending && <SendDialog topic={topic} record={record} onClose={() => setResending(false)} />}
      {snippets && <Snippets topic={topic} after={record.seq - 1} record={record} onClose={() => setSnippets(false)} />}
    </aside>
  );
}
