/** What the user may do: what the key allows, and nothing that changes anything while the console is read-only. */
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { call } from "./api.ts";

export type Scope = "read" | "write" | "delete" | "admin";

export interface Access {
  auth: boolean;
  scopes: Scope[];
  prefixes: string[];
}

export const askAccess = (): Promise<Access> => call<Access>("GET", "v0/access");

const READ_ONLY = "topics-console-read-only";
export const isReadOnly = (): boolean => localStorage.getItem(READ_ONLY) === "1";
export const keepReadOnly = (on: boolean): void => localStorage.setItem(READ_ONLY, on ? "1" : "0");

export const May = createContext<(scope: Scope) => boolean>(() => false);

/** `may("write")`: offer it only then. */
export const useMay = (): ((scope: Scope) => boolean) => useContext(May);
