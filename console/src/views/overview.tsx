/** Is all well, how much is going on, and what wants attention. */
import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { ApiError, call, callText, listAll, spent, type TopicState, type TopicSummary, topicState } from "../lib/api.ts";
import { type Cursor, listCursors } from "../lib/cursors.ts";
import { useFeatures } from "../lib/features.ts";
import { bytes, count, duration, plural, rate, short } from "../lib/format.ts";
import { History } from "../lib/history.ts";
import { Metrics } from "../lib/metrics.ts";
import { Rates, usePoll } from "../lib/poll.ts";
import { href } from "../lib/route.ts";
import { Badge, Loading, Meter, Stat, Trouble } from "../ui/bits.tsx";
import { Icon } from "../ui/icons.tsx";
import { Sparkline } from "../ui/sparkline.tsx";

const LAG_MS = 60_000; // a reader that is further behind wants attention
const TOP = 6;
const HISTORY = 90; // samples kept for the sparklines
const QUEUES_MAX = 50;
const METRICS_CHARS_MS = 4000; // characters of metrics that a server writes in a millisecond

interface Snapshot {
  metrics: Metrics;
  problems: string[];
  uptimeMs: number;
  version: string;
  rates: Map<string, number>;
  history: History;
}

const COUNTERS: Record<string, string> = {
  requests: "topics_http_requests_total",
  pushes: "topics_delivery_services_total",
  wal: "topics_wal_bytes_written_total",
  syncs: "topics_wal_fsyncs_total",
};

function useSnapshot(): ReturnType<typeof usePoll<Snapshot>> {
  const rates = useRef(new Rates());
  const history = useRef(new History(HISTORY));
  return usePoll(async (signal) => {
    const health = await call<{ version: string; uptime_ms: number; problems?: string[] }>("GET", "v0/health", undefined, signal);
    const text = await callText("v0/metrics");
    spent.ms += text.length / METRICS_CHARS_MS; // this answer does not say what it cost
    const metrics = new Metrics(text);
    const counters = Object.entries(COUNTERS)
      .map(([key, name]) => [key, metrics.sum(name)] as const)
      .filter((pair): pair is [string, number] => pair[1] !== undefined);
    const found = rates.current.sample(counters);
    if (found.size) history.current.add(found);
    return { metrics, problems: health.problems ?? [], uptimeMs: health.uptime_ms, version: health.version, rates: found, history: history.current };
  }, []);
}

interface Attention {
  tone: "bad" | "warn";
  text: string;
  to?: string;
}

async function queueAttention(topics: TopicSummary[], signal: AbortSignal): Promise<Attention[]> {
  const queues = topics.filter((topic) => topic.type === "queue").slice(0, QUEUES_MAX);
  const states: TopicState[] = [];
  for (const queue of queues) states.push(await topicState(queue.topic, signal).catch(() => null as unknown as TopicState));
  const counts = new Map(topics.map((topic) => [topic.topic, topic.count]));
  return states.filter(Boolean).flatMap(({ topic, queue, config }) => {
    const found: Attention[] = [];
    if (!queue) return found;
    const letters = config.dead_letter === null ? queue.dead_lettered : Math.min(queue.dead_lettered, counts.get(config.dead_letter) ?? 0); // those that were redriven are not there any more
    if (letters) found.push({ tone: "warn", text: `${topic} gave up on ${plural(letters, "job")}: look at its dead letters`, to: href(["topics", topic, "jobs"], { state: "dead" }) });
    if (queue.lost_in_flight) found.push({ tone: "bad", text: `${topic} lost ${plural(queue.lost_in_flight, "leased job")} to its cap or TTL`, to: href(["topics", topic]) });
    if (config.paused === true) found.push({ tone: "warn", text: `${topic} is paused with ${plural(queue.ready, "ready job")}`, to: href(["topics", topic, "jobs"]) });
    return found;
  });
}

const lagging = (cursor: Cursor): Attention[] =>
  cursor.kind !== "queue" && cursor.lag.ms > LAG_MS ? [{ tone: "warn", text: `${cursor.cursor} is ${duration(cursor.lag.ms)} and ${plural(cursor.lag.records, "record")} behind in ${cursor.topic}`, to: href(["readers"], { q: cursor.cursor }) }] : [];

interface FailingSchedule {
  schedule: string;
  problem?: string;
}

const failing = ({ schedule, problem }: FailingSchedule): Attention[] => (problem ? [{ tone: "bad", text: `schedule ${schedule}: ${problem}`, to: href(["schedules", schedule]) }] : []);

export function Overview(): JSX.Element {
  const { value, error, again } = useSnapshot();
  const topicRates = useRef(new Rates());
  const written = useRef(new History(HISTORY));
  const features = useFeatures();
  const attention = usePoll(async (signal) => {
    const topics = await listAll<TopicSummary>("v0/topics", "topics", {}, () => undefined, signal);
    const found = topicRates.current.sample(topics.map((topic) => [topic.topic, topic.head_seq]));
    if (found.size || !topics.length) written.current.add([["all", [...found.values()].reduce((sum, one) => sum + one, 0)]]);
    const list = await queueAttention(topics, signal);
    if (features.cursors) list.push(...(await listCursors(signal)).flatMap(lagging));
    if (features.schedules) list.push(...(await listAll<FailingSchedule>("v0/schedules", "schedules", {}, () => undefined, signal)).flatMap(failing));
    return { list, topics };
  }, [features.cursors, features.schedules], 3000);
  if (!value) return error ? <Trouble error={error} again={again} /> : <Loading />;
  const { metrics } = value;
  const told: Attention[] = [...value.problems.map((text) => ({ tone: "bad" as const, text })), ...(attention.value?.list ?? [])];
  const rateCard = (name: string, title: string, unit: string): JSX.Element | null => {
    const series = name === "written" ? written.current.of("all") : value.history.of(name);
    const now = name === "written" ? series.at(-1) : value.rates.get(name);
    return (
      <Stat name={title} value={now === undefined ? "–" : unit === "bytes" ? bytes(Math.round(now)) : rate(now)} unit={unit === "bytes" ? "/s" : unit}>
        <Sparkline values={series} label={`${title}, the last minutes`} />
      </Stat>
    );
  };
  const hot = metrics.get('topics_segment_bytes{tier="hot"}');
  const cold = metrics.get('topics_segment_bytes{tier="cold"}');
  const [free, size] = [metrics.get("topics_data_dir_free_bytes"), metrics.get("topics_data_dir_size_bytes")];
  const pressure = metrics.get("topics_delivery_pressure") ?? 0;
  const coldUp = metrics.get("topics_cold_store_up");
  return (
    <div class="view overview">
      <h1 class="sr">Overview</h1>
      <Trouble error={error} again={again} />
      <section class={`card verdict ${told.length ? (value.problems.length ? "bad" : "warn") : "good"}`} aria-label="Health">
        <Icon name={told.length ? "warn" : "ok"} size={26} />
        <div>
          <h2>{told.length ? `${plural(told.length, "thing")} to look at` : "Everything is well"}</h2>
          {told.length === 0 && <p>Every log shard takes writes, checkpoints and snapshots succeed, no queue gave up on a job.</p>}
          {told.length > 0 && (
            <ul>
              {told.map(({ text, to }) => (
                <li key={text}>{to ? <a href={to}>{text}</a> : text}</li>
              ))}
            </ul>
          )}
        </div>
        <small class="verdict-more">
          version {value.version} · up {duration(value.uptimeMs)}
        </small>
      </section>
      <section class="stats" aria-label="Rates">
        {rateCard("written", "Records written", "/s")}
        {rateCard("pushes", "Pushed to streams", "/s")}
        {rateCard("requests", "Requests", "/s")}
        {rateCard("wal", "Log", "bytes")}
        {rateCard("syncs", "Disk syncs", "/s")}
      </section>
      <section class="stats" aria-label="What is stored">
        <Stat name="Topics" value={<a href={href(["topics"])}>{count(metrics.get("topics_topics") ?? 0)}</a>} hint={`${count(metrics.get("topics_queue_topics") ?? 0)} of them queues`} />
        <Stat name="Records" value={short(metrics.get("topics_records_live") ?? 0)} hint={bytes(metrics.get("topics_bytes_live") ?? 0)} />
        <Stat name="Jobs in flight" value={<a href={href(["queues"])}>{count(metrics.get("topics_queue_leases_in_flight") ?? 0)}</a>} />
        <Stat name="Open streams" value={count(metrics.get("topics_sse_connections") ?? 0)} hint={plural(metrics.get("topics_watch_sessions") ?? 0, "watch session")} />
        <Stat name="Routers" value={<a href={href(["routers"])}>{count(metrics.get("topics_routers") ?? 0)}</a>} />
      </section>
      {attention.value && <Busiest topics={attention.value.topics} rates={topicRates.current.latest} />}
      <div class="two">
        <section class="card" aria-labelledby="o-log">
          <h2 id="o-log">Log and checkpoints</h2>
          <dl>
            <dt>Takes writes</dt>
            <dd>{metrics.get("topics_wal_read_only") ? <Badge tone="bad">no</Badge> : <Badge tone="good">yes</Badge>}</dd>
            <dt>Waiting to commit</dt>
            <dd>
              {count(metrics.get("topics_wal_queue_depth") ?? 0)} <small>peak {count(metrics.get("topics_wal_queue_depth_peak") ?? 0)}</small>
            </dd>
            <dt>Mean answer</dt>
            <dd>{meanTime(metrics, "topics_http_request_duration_seconds")}</dd>
            <dt>Mean push to streams</dt>
            <dd>{meanTime(metrics, "topics_delivery_duration_seconds")}</dd>
            <dt>Mean disk sync</dt>
            <dd>{meanTime(metrics, "topics_wal_fsync_duration_seconds")}</dd>
            <dt>Checkpoints</dt>
            <dd>{succeeded(metrics, "topics_checkpoints_total", "topics_checkpoint_failures_total")}</dd>
            <dt>Snapshots</dt>
            <dd>{succeeded(metrics, "topics_snapshots_total", "topics_snapshot_failures_total")}</dd>
            <dt>Lost at the last start</dt>
            <dd>{metrics.get("topics_lost_seqs_total") ? <Badge tone="bad">{plural(metrics.get("topics_lost_seqs_total") ?? 0, "seq")}, announced to readers</Badge> : "nothing"}</dd>
          </dl>
        </section>
        <section class="card" aria-labelledby="o-disk">
          <h2 id="o-disk">Disk and delivery</h2>
          <dl>
            <dt>Free on the disk</dt>
            <dd>{free === undefined || !size ? "not known" : <FreeDisk free={free} size={size} />}</dd>
            <dt>Sealed, first tier</dt>
            <dd>
              {bytes(hot ?? 0)} <small>{plural(metrics.get('topics_segments{tier="hot"}') ?? 0, "segment")}</small>
            </dd>
            <dt>Sealed, cold store</dt>
            <dd>
              {coldUp === undefined && !cold ? "not used" : bytes(cold ?? 0)} {coldUp !== undefined && <Badge tone={coldUp ? "good" : "bad"}>{coldUp ? "answers" : "does not answer"}</Badge>}
            </dd>
            <dt>Written to the log</dt>
            <dd>{bytes(metrics.get("topics_wal_bytes_written_total") ?? 0)} since the start</dd>
            <dt>Pressure</dt>
            <dd>
              <Meter share={pressure} label={`pressure ${Math.round(pressure * 100)} percent`} tone={pressure > 0.7 ? "bad" : pressure > 0.3 ? "warn" : "good"} />
              <small>{Math.round(pressure * 100)} %</small>
            </dd>
            <dt>Streams cut off as too slow</dt>
            <dd>{count(metrics.get("topics_streams_too_slow_total") ?? 0)}</dd>
            {!!metrics.get("topics_topics") && <dt>Durability</dt>}
            {!!metrics.get("topics_topics") && (
              <dd class="badges">
                {["fsync", "disk", "memory", "ephemeral"].map((name) => {
                  const topics = metrics.get(`topics_topics_by_class{class="${name}"}`);
                  return topics ? (
                    <Badge key={name}>
                      {name} {count(topics)}
                    </Badge>
                  ) : null;
                })}
              </dd>
            )}
          </dl>
        </section>
      </div>
      {attention.error instanceof ApiError && attention.error.status !== 0 && <Trouble error={attention.error} />}
    </div>
  );
}

/** Where records come in; while nothing does, where most are stored. */
function Busiest({ topics, rates }: { topics: TopicSummary[]; rates: Map<string, number> }): JSX.Element | null {
  const busy = topics.filter((topic) => (rates.get(topic.topic) ?? 0) > 0);
  const value = (topic: TopicSummary): number => (busy.length ? (rates.get(topic.topic) ?? 0) : topic.count);
  const top = (busy.length ? busy : topics.filter((topic) => topic.count > 0)).toSorted((a, b) => value(b) - value(a)).slice(0, TOP);
  const most = Math.max(1e-9, ...top.map(value));
  if (!top.length) return null;
  return (
    <section class="card" aria-labelledby="o-busy">
      <h2 id="o-busy">{busy.length ? "Busiest topics" : "Largest topics"}</h2>
      <ul class="bars">
        {top.map((topic) => (
          <li key={topic.topic}>
            <a class="name" href={href(["topics", topic.topic])}>
              {topic.topic}
            </a>
            <Meter share={value(topic) / most} label={`${Math.round((100 * value(topic)) / most)} percent of the first`} />
            <span class="num">{busy.length ? `${rate(value(topic))} /s` : short(value(topic))}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Since the start, over all labels of a histogram. */
function meanTime(metrics: Metrics, name: string): string {
  const times = metrics.sum(`${name}_count`) ?? 0;
  return times ? `${((1000 * (metrics.sum(`${name}_sum`) ?? 0)) / times).toFixed(2)} ms` : "none yet";
}

function FreeDisk({ free, size }: { free: number; size: number }): JSX.Element {
  const used = 1 - free / size;
  return (
    <>
      <Meter share={used} label={`${Math.round(100 * used)} percent of the disk is used`} tone={used > 0.95 ? "bad" : used > 0.85 ? "warn" : "good"} />
      {bytes(free)} <small>of {bytes(size)}</small>
    </>
  );
}

function succeeded(metrics: Metrics, done: string, failed: string): JSX.Element {
  const failures = metrics.get(failed) ?? 0;
  return (
    <>
      {count(metrics.get(done) ?? 0)} {failures > 0 && <Badge tone="warn">{count(failures)} failed</Badge>}
    </>
  );
}
