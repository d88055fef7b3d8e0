/** The frame around all views: navigation, who is signed in, light or dark, read-only. */
import type { JSX } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { type Access, askAccess, isReadOnly, keepReadOnly, May, type Scope } from "./lib/access.ts";
import { ApiError, call, hasKey, onUnauthorized, setKey } from "./lib/api.ts";
import { duration } from "./lib/format.ts";
import { usePoll } from "./lib/poll.ts";
import { href, type Route, useRoute } from "./lib/route.ts";
import { Button } from "./ui/bits.tsx";
import { Icon, type IconName } from "./ui/icons.tsx";
import { Toasts } from "./ui/toast.tsx";
import { askFeatures, type Features, FeaturesContext, NOTHING } from "./lib/features.ts";
import { Overview } from "./views/overview.tsx";
import { Queues } from "./views/queues.tsx";
import { Readers } from "./views/readers.tsx";
import { Routers } from "./views/routers.tsx";
import { Schedules } from "./views/schedules.tsx";
import { SignIn } from "./views/signin.tsx";
import { Spark } from "./views/spark.tsx";
import { Topic } from "./views/topic.tsx";
import { Topics } from "./views/topics.tsx";

const PLACES: [string, string, IconName, (keyof Features)?][] = [
  ["overview", "Overview", "overview"],
  ["topics", "Topics", "topics"],
  ["queues", "Queues", "queues"],
  ["routers", "Routers", "routers"],
  ["readers", "Readers", "readers", "cursors"],
  ["schedules", "Schedules", "schedules", "schedules"],
  ["spark", "Spark", "spark"],
];

function View({ route }: { route: Route }): JSX.Element {
  const [place = "overview", name, tab] = route.path;
  if (place === "topics" && name !== undefined) return <Topic key={name} name={name} tab={tab ?? "records"} query={route.query} />;
  if (place === "topics") return <Topics query={route.query} />;
  if (place === "queues") return <Queues query={route.query} />;
  if (place === "routers") return <Routers query={route.query} />;
  if (place === "readers") return <Readers query={route.query} />;
  if (place === "schedules") return <Schedules name={name} query={route.query} />;
  if (place === "spark") return <Spark />;
  return <Overview />;
}

const THEME = "topics-console-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

function useTheme(): [boolean, () => void] {
  const [isDark, setDark] = useState((localStorage.getItem(THEME) ?? (dark.matches ? "dark" : "light")) === "dark");
  useEffect(() => {
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  }, [isDark]);
  return [isDark, () => (localStorage.setItem(THEME, isDark ? "light" : "dark"), setDark(!isDark))];
}

interface Health {
  version: string;
  uptime_ms: number;
  problems?: string[];
}

function ServerState(): JSX.Element {
  const { value, error } = usePoll((signal) => call<Health>("GET", "v0/health", undefined, signal), [], 5000);
  const lost = error?.status === 0;
  const problems = value?.problems ?? [];
  const [tone, text] = lost ? ["bad", "no answer"] : problems.length ? ["warn", `${problems.length} to look at`] : ["good", "healthy"];
  return (
    <a class="server" href={href([])} title={value ? `version ${value.version}, up ${duration(value.uptime_ms)}` : ""}>
      <i class={`dot ${tone}`} />
      <span role="status">{value || lost ? text : "connecting"}</span>
    </a>
  );
}

export function App(): JSX.Element {
  const route = useRoute();
  const [isDark, toggleTheme] = useTheme();
  const [readOnly, setReadOnly] = useState(isReadOnly());
  const [access, setAccess] = useState<Access | null>(null);
  const [needsKey, setNeedsKey] = useState(false);
  const [features, setFeatures] = useState<Features>(NOTHING);
  const main = useRef<HTMLElement>(null);

  const enter = useCallback(async (): Promise<void> => {
    try {
      const [rights, can] = await Promise.all([askAccess(), askFeatures()]);
      setFeatures(can);
      setAccess(rights);
      setNeedsKey(false);
    } catch (error) {
      if (error instanceof ApiError && error.status === 0) setTimeout(() => void enter(), 1000);
      else throw error;
    }
  }, []);
  useEffect(() => {
    onUnauthorized(() => {
      setNeedsKey(true);
      setAccess(null);
    });
    enter().catch(() => undefined);
  }, []);
  const place = route.path[2] === "jobs" ? "queues" : (route.path[0] ?? "overview");
  useEffect(() => {
    const title = PLACES.find(([key]) => key === place)?.[1] ?? "Overview";
    document.title = [route.path[1], title, "topics"].filter(Boolean).join(" · ");
  }, [place, route.path[1]]);

  const signOut = (): void => {
    setKey("", false);
    setAccess(null);
    setNeedsKey(true);
  };
  const may = (scope: Scope): boolean => access !== null && access.scopes.includes(scope) && (scope === "read" || !readOnly);
  const canChange = access !== null && access.scopes.some((scope) => scope !== "read");
  return (
    <May.Provider value={may}>
      <div class="shell">
        <button type="button" class="skip" onClick={() => main.current?.focus()}>
          Skip to content
        </button>
        <header class="top">
          <a class="brand" href={href([])}>
            <svg viewBox="0 0 24 24" width="24" height="24" aria-hidden="true">
              <rect width="24" height="24" rx="6" class="brand-box" />
              <path d="M5 8h9M5 12h14M5 16h6M18 8h.01M15 16h.01" class="brand-lines" />
            </svg>
            topics
          </a>
          <ServerState />
          <span class="grow" />
          {canChange && (
            <Button
              icon={readOnly ? "lock" : "unlock"}
              kind="quiet"
              pressed={readOnly}
              label={readOnly ? "Read-only: nothing can be changed" : "Changes are possible"}
              onClick={() => (keepReadOnly(!readOnly), setReadOnly(!readOnly))}
            />
          )}
          {access && !canChange && (
            <span class="note">
              <Icon name="lock" size={14} /> read-only key
            </span>
          )}
          <Button icon={isDark ? "sun" : "moon"} kind="quiet" label={isDark ? "Light colours" : "Dark colours"} onClick={toggleTheme} />
          {access?.auth && hasKey() && (
            <Button icon="key" kind="quiet" onClick={signOut}>
              Sign out
            </Button>
          )}
        </header>
        <nav class="side" aria-label="Views">
          {PLACES.filter(([, , , needs]) => needs === undefined || features[needs]).map(([key, title, icon]) => (
            <a key={key} href={href(key === "overview" ? [] : [key])} aria-current={place === key ? "page" : undefined}>
              <Icon name={icon} size={20} />
              <span>{title}</span>
            </a>
          ))}
        </nav>
        <main ref={main} tabIndex={-1}>
          {needsKey ? <SignIn onKey={enter} /> : (
            // At once, before the server has told what the key may do: a view that may not be seen is answered 401 or 403.
            <FeaturesContext.Provider value={features}>
              <View route={route} />
            </FeaturesContext.Provider>
          )}
        </main>
        <Toasts />
      </div>
    </May.Provider>
  );
}
