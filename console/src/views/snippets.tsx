/** The same read or write as a command or a program, to be taken elsewhere. The key is never in it. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { hasKey, type RecordRow } from "../lib/api.ts";
import { Button, Segmented } from "../ui/bits.tsx";
import { Dialog } from "../ui/dialog.tsx";
import { copyText } from "../ui/toast.tsx";
import { recordBody } from "./send.tsx";

type Language = "curl" | "python" | "spark";

const base = (): string => location.href.replace(/\/console.*$/, "");
const shell = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;
const python = (text: string): string => JSON.stringify(text);

function reading(language: Language, topic: string, after: number): string {
  const url = base();
  if (language === "curl")
    return [`curl -s ${shell(`${url}/v0/topics/${encodeURIComponent(topic)}/diff`)}`, ...(hasKey() ? ['  -H "Authorization: Bearer $TOPICS_API_KEY"'] : []), `  -H 'Content-Type: application/json'`, `  -d ${shell(JSON.stringify({ from_seq: after, include_tags: true }))}`].join(" \\\n");
  if (language === "python")
    return `import topics\n\nwith topics.connect(${python(url)}) as client:${hasKey() ? "  # the key is in TOPICS_API_KEY" : ""}\n    for record in client.topic(${python(topic)}).read(after=${after}):\n        print(record.seq, record.tag, record.value)\n`;
  return `import topics.spark\n\nspark = topics.spark.session()\nrows = (\n    spark.read.format("topics")\n    .option("url", ${python(url)})\n    .option("subscribe", ${python(topic)})\n    .load()\n    .where("seq > ${after}")\n)\nrows.show()\n`;
}

function sending(language: Language, topic: string, record: RecordRow): string {
  const url = base();
  if (language === "curl")
    return [`curl -s ${shell(`${url}/v0/topics/${encodeURIComponent(topic)}`)}`, ...(hasKey() ? ['  -H "Authorization: Bearer $TOPICS_API_KEY"'] : []), `  -H 'Content-Type: application/json'`, `  -d ${shell(recordBody(record.data, record))}`].join(" \\\n");
  if (language === "python")
    return `import json\n\nimport topics\n\ndata = json.loads(${python(record.data)})\nwith topics.connect(${python(url)}) as client:\n    client.topic(${python(topic)}).append(data${record.tag ? `, tag=${python(record.tag)}` : ""})\n`;
  return `import topics.spark\n\nspark = topics.spark.session()\nrow = (\n    spark.read.format("topics")\n    .option("url", ${python(url)})\n    .option("subscribe", ${python(topic)})\n    .load()\n    .where("seq = ${record.seq}")\n)\nrow.show(truncate=False)\n`;
}

export function Snippets({ topic, after, record, onClose }: { topic: string; after: number; record?: RecordRow; onClose: () => void }): JSX.Element {
  const [language, setLanguage] = useState<Language>("curl");
  const text = record ? sending(language, topic, record) : reading(language, topic, after);
  const what = record ? (language === "spark" ? "Read this record" : "Send this record") : "Read from here";
  return (
    <Dialog title={`${what} elsewhere`} onClose={onClose} wide>
      <Segmented
        label="As"
        value={language}
        options={[
          ["curl", "curl"],
          ["python", "Python"],
          ["spark", "Spark"],
        ]}
        onChange={setLanguage}
      />
      <pre class="snippet" tabIndex={0} aria-label="Snippet">{text.length > 20_000 ? text.slice(0, 20_000) + "…" : text}</pre>
      <footer>
        <Button icon="copy" kind="primary" onClick={() => void copyText(text, "Snippet")}>
          Copy
        </Button>
      </footer>
    </Dialog>
  );
}
