/** What this server can do, by its own contract: a view whose endpoint it does not have is not shown. */
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { callText } from "./api.ts";

export interface Features {
  cursors: boolean;
  schedules: boolean;
  jobs: boolean;
  readsByTag: boolean;
}

interface OpenApi {
  paths: Record<string, unknown>;
  components: { schemas: Record<string, { properties?: Record<string, unknown> } | undefined> };
}

export async function askFeatures(): Promise<Features> {
  const { paths, components } = JSON.parse(await callText("openapi.json", "application/json")) as OpenApi;
  return {
    cursors: "/v0/cursors" in paths,
    schedules: "/v0/schedules" in paths,
    jobs: "/v0/topics/{topic}/jobs" in paths,
    readsByTag: "tag" in (components.schemas.DiffRequest?.properties ?? {}),
  };
}

/** Until the server has told. */
export const NOTHING: Features = { cursors: false, schedules: false, jobs: false, readsByTag: false };

export const FeaturesContext = createContext<Features>(NOTHING);
export const useFeatures = (): Features => useContext(FeaturesContext);
