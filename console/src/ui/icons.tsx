/** Line icons, drawn here: 24 units wide, in the colour of the text. */
import type { JSX } from "preact";

const PATHS = {
  overview: "M4 13h5V4H4zM4 20h5v-4H4zM13 20h7v-9h-7zM13 4v4h7V4z",
  topics: "M4 6h11M4 12h16M4 18h8M19 6h.01M16 18h.01",
  queues: "M4 7h4v10H4zM10 7h4v10h-4zM17 8l4 4-4 4",
  routers: "M5 12h5M10 12c4 0 3-6 8-6M10 12c4 0 3 6 8 6M16 4l2 2-2 2M16 16l2 2-2 2",
  readers: "M3 12s3.5-6 9-6 9 6 9 6-3.5 6-9 6-9-6-9-6zM12 14.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5z",
  schedules: "M12 21a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM12 8v5l3 2M9 2h6",
  spark: "M13 3L5 14h6l-1 7 8-11h-6z",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
  send: "M4 12l16-8-6 16-2.5-6.5z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  link: "M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  play: "M7 5l12 7-12 7z",
  pause: "M8 5v14M16 5v14",
  close: "M6 6l12 12M18 6L6 18",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  plus: "M12 5v14M5 12h14",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5",
  moon: "M20 14A8.5 8.5 0 0 1 10 4a8.5 8.5 0 1 0 10 10z",
  lock: "M6 11h12v9H6zM8.5 11V8a3.5 3.5 0 0 1 7 0v3",
  unlock: "M6 11h12v9H6zM8.5 11V8a3.5 3.5 0 0 1 6.8-1.2",
  key: "M14 10a4 4 0 1 0-3.5 4L12 15.5V18h2.5v2.5H18V17l-4.4-4.4A4 4 0 0 0 14 10zM9 9h.01",
  chart: "M4 4v16h16M8 15l4-5 3 3 5-7",
  retry: "M20 12a8 8 0 1 1-2.3-5.6M20 4v5h-5",
  chevron: "M9 6l6 6-6 6",
  up: "M12 19V5M6 11l6-6 6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  warn: "M12 4L2.5 20h19zM12 10v4M12 17h.01",
  ok: "M5 13l4 4L19 7",
  code: "M8 7l-5 5 5 5M16 7l5 5-5 5",
  settings: "M4 7h10M18 7h2M4 17h4M12 17h8M16 9a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM10 19a2 2 0 1 0 0-4 2 2 0 0 0 0 4z",
  more: "M5 12h.01M12 12h.01M19 12h.01",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18 }: { name: IconName; size?: number }): JSX.Element {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
