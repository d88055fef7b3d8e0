/**
 * Lines over time on a canvas. Points are put into buckets of a few pixels and one number is drawn for each, so a frame costs the
 * same for a hundred points and for a hundred thousand.
 */
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock, day, short } from "../lib/format.ts";

export type Aggregate = "mean" | "max" | "min" | "sum" | "count" | "p95";
export const AGGREGATES: Aggregate[] = ["mean", "p95", "max", "min", "sum", "count"];

export interface Series {
  name: string;
  times: ArrayLike<number>;
  values: ArrayLike<number>;
  length: number;
}

const COLOURS = 8;
const BUCKET_PX = 6;
const LEFT = 52;
const BOTTOM = 22;
const TOP = 10;

interface Drawn {
  name: string;
  colour: number;
  points: (number | null)[]; // one for each bucket
}

function aggregated(values: number[], how: Aggregate): number | null {
  if (!values.length) return how === "count" ? 0 : null;
  if (how === "count") return values.length;
  if (how === "max") return values.reduce((a, b) => Math.max(a, b));
  if (how === "min") return values.reduce((a, b) => Math.min(a, b));
  if (how === "p95") return values.sort((a, b) => a - b)[Math.floor((values.length - 1) * 0.95)] as number;
  const sum = values.reduce((a, b) => a + b, 0);
  return how === "sum" ? sum : sum / values.length;
}

function bucketed(series: Series[], from: number, to: number, buckets: number, how: Aggregate): Drawn[] {
  const width = (to - from) / buckets;
  return series.map(({ name, times, values, length }, colour) => {
    const filled: number[][] = Array.from({ length: buckets }, () => []);
    for (let index = 0; index < length; index += 1) {
      const at = Math.min(buckets - 1, Math.floor(((times[index] as number) - from) / width));
      if (at >= 0) (filled[at] as number[]).push(values[index] as number);
    }
    return { name, colour, points: filled.map((bucket) => aggregated(bucket, how)) };
  });
}

/** Round numbers between two ends, about `wanted` of them. */
function ticks(low: number, high: number, wanted: number): number[] {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = ([1, 2, 5, 10].find((unit) => unit * power >= raw) ?? 10) * power;
  const found: number[] = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(Math.abs(value) < step * 1e-6 ? 0 : value);
  return found;
}

const TIME_STEPS = [100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5];

function timeTicks(low: number, high: number, wanted: number): number[] {
  const step = TIME_STEPS.find((one) => (high - low) / one <= wanted) ?? 864e5 * Math.ceil((high - low) / 864e5 / wanted);
  const zone = new Date(low).getTimezoneOffset() * 60_000;
  const found: number[] = [];
  for (let at = Math.ceil((low - zone) / step) * step + zone; at <= high; at += step) found.push(at);
  return found;
}

function timeLabel(ts: number, span: number): string {
  if (span > 2 * 864e5) return day(ts).slice(5);
  const text = clock(ts);
  return span < 5000 ? text.slice(3) : span < 36e5 ? text.slice(0, 8) : text.slice(0, 5);
}

export interface PlotProps {
  series: Series[];
  how: Aggregate;
  label: string;
  height?: number;
  unit?: string;
  /** Changes whenever points were added: arrays are filled in place. */
  version: unknown;
}

export function Plot({ series, how, label, height = 320, version }: PlotProps): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(600);
  const [hover, setHover] = useState<number | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());

  useEffect(() => {
    const parent = canvas.current?.parentElement;
    if (!parent) return;
    const watched = new ResizeObserver(() => setWidth(parent.clientWidth));
    watched.observe(parent);
    return () => watched.disconnect();
  }, []);

  const drawn = useMemo(() => {
    let [from, to] = [Infinity, -Infinity];
    for (const { times, length } of series)
      if (length) {
        from = Math.min(from, times[0] as number);
        to = Math.max(to, times[length - 1] as number);
      }
    if (!Number.isFinite(from)) return null;
    if (to - from < 1000) from = to - 1000;
    const buckets = Math.max(10, Math.floor((width - LEFT - 8) / (series.length > 1 ? 2 * BUCKET_PX : BUCKET_PX)));
    return { from, to, buckets, lines: bucketed(series, from, to, buckets, how) };
  }, [series, how, width, version]);

  useEffect(() => {
    if (canvas.current && drawn) draw(canvas.current, { ...drawn, lines: drawn.lines.filter((line) => !hidden.has(line.name)) }, width, height, hover);
  });

  const at = (event: PointerEvent & { currentTarget: HTMLCanvasElement }): void => {
    if (!drawn) return;
    const x = event.offsetX - LEFT;
    setHover(x < 0 ? null : Math.min(drawn.buckets - 1, Math.floor((x / (width - LEFT - 8)) * drawn.buckets)));
  };
  const summary = drawn
    ? drawn.lines.slice(0, 8).map((line) => {
        const known = line.points.filter((one): one is number => one !== null);
        return known.length ? `${line.name}: last ${short(known.at(-1) as number)}, lowest ${short(Math.min(...known))}, highest ${short(Math.max(...known))}` : `${line.name}: nothing`;
      })
    : [];
  const toggle = (name: string): void => {
    const next = new Set(hidden);
    if (!next.delete(name)) next.add(name);
    setHidden(next);
  };
  return (
    <figure class="plot">
      <div class="plot-box">
        <canvas ref={canvas} role="img" aria-label={`${label}. ${summary.join("; ")}`} onPointerMove={at} onPointerLeave={() => setHover(null)} style={{ width: `${width}px`, height: `${height}px` }} />
        {drawn && hover !== null && (
          <div class={hover > drawn.buckets / 2 ? "plot-tip left" : "plot-tip"} style={{ left: `${LEFT + ((hover + 0.5) / drawn.buckets) * (width - LEFT - 8)}px` }}>
            <b>{timeLabel(drawn.from + ((hover + 0.5) / drawn.buckets) * (drawn.to - drawn.from), Math.min(drawn.to - drawn.from, 36e5 - 1))}</b>
            {drawn.lines.map((line) => {
              const value = line.points[hover];
              return value === null || value === undefined || hidden.has(line.name) ? null : (
                <div key={line.name}>
                  <i class={`dot c${line.colour % COLOURS}`} /> {line.name} <b>{short(value)}</b>
                </div>
              );
            })}
          </div>
        )}
      </div>
      {series.length > 1 && (
        <figcaption class="legend">
          {series.map(({ name }, index) => (
            <button type="button" key={name} aria-pressed={!hidden.has(name)} onClick={() => toggle(name)}>
              <i class={`dot c${index % COLOURS}`} />
              {name}
            </button>
          ))}
        </figcaption>
      )}
    </figure>
  );
}

function draw(canvas: HTMLCanvasElement, plot: { from: number; to: number; buckets: number; lines: Drawn[] }, width: number, height: number, hover: number | null): void {
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(canvas);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px " + style.fontFamily;
  let [low, high] = [Infinity, -Infinity];
  for (const line of plot.lines)
    for (const value of line.points)
      if (value !== null) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
  if (!Number.isFinite(low)) return;
  if (low > 0 && low < high * 0.6) low = 0;
  if (low === high) [low, high] = [Math.min(0, low), high || 1];
  const right = width - 8;
  const bottom = height - BOTTOM;
  const x = (bucket: number): number => LEFT + ((bucket + 0.5) / plot.buckets) * (right - LEFT);
  const y = (value: number): number => bottom - ((value - low) / (high - low)) * (bottom - TOP);

  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--dim");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const value of ticks(low, high, Math.max(2, height / 60))) {
    const at = Math.round(y(value)) + 0.5;
    pen.beginPath();
    pen.moveTo(LEFT, at);
    pen.lineTo(right, at);
    pen.stroke();
    pen.fillText(short(value), LEFT - 8, at);
  }
  pen.textAlign = "center";
  pen.textBaseline = "top";
  const span = plot.to - plot.from;
  for (const ts of timeTicks(plot.from, plot.to, Math.max(2, width / 110))) {
    const at = LEFT + ((ts - plot.from) / span) * (right - LEFT);
    if (at > LEFT + 16 && at < right - 16) pen.fillText(timeLabel(ts, span), at, bottom + 7);
  }
  if (hover !== null) {
    pen.beginPath();
    pen.moveTo(x(hover), TOP);
    pen.lineTo(x(hover), bottom);
    pen.stroke();
  }
  pen.lineWidth = 1.6;
  pen.lineJoin = "round";
  for (const line of plot.lines) {
    pen.strokeStyle = pen.fillStyle = colour(`--c${line.colour % COLOURS}`);
    pen.beginPath();
    let begun = false;
    let known = 0;
    line.points.forEach((value, bucket) => {
      if (value === null) return;
      known += 1;
      if (begun) pen.lineTo(x(bucket), y(value));
      else pen.moveTo(x(bucket), y(value));
      begun = true;
    });
    pen.stroke();
    if (known < 40) line.points.forEach((value, bucket) => value !== null && (pen.beginPath(), pen.arc(x(bucket), y(value), 2.5, 0, 7), pen.fill()));
    if (plot.lines.length === 1 && known > 1) {
      const inside = line.points.map((value, bucket) => (value === null ? null : ([x(bucket), y(value)] as const))).filter((one) => one !== null);
      pen.globalAlpha = 0.1;
      pen.beginPath();
      pen.moveTo((inside[0] as readonly [number, number])[0], bottom);
      for (const [px, py] of inside) pen.lineTo(px, py);
      pen.lineTo((inside.at(-1) as readonly [number, number])[0], bottom);
      pen.fill();
      pen.globalAlpha = 1;
    }
  }
}
