// Probabilities by transformers.js, which does not know us: a job as JSON on stdin,
// {"folder", "dtype", "inputs"}, and a row of probabilities for each input on stdout.
import { readFileSync } from "node:fs";
import { basename, dirname } from "node:path";
import { AutoModelForSequenceClassification, AutoTokenizer, env, softmax } from "@huggingface/transformers";

const job = JSON.parse(readFileSync(0, "utf8"));
env.allowRemoteModels = false;
env.localModelPath = dirname(job.folder);
const name = basename(job.folder);
const tokenizer = await AutoTokenizer.from_pretrained(name);
const model = await AutoModelForSequenceClassification.from_pretrained(name, { dtype: job.dtype });
const rows = [];
for (const each of job.inputs) {
  const [text, text_pair] = typeof each === "string" ? [each, null] : each;
  // A BertTokenizer gives the types of tokens by itself, the class of the tests' tiny one does not.
  const types = text_pair !== null;
  const inputs = await tokenizer(text, { text_pair, return_token_type_ids: types });
  const { logits } = await model(inputs);
  const z = Array.from(logits.data);
  rows.push(z.length === 1 ? [1 / (1 + Math.exp(-z[0]))] : Array.from(softmax(z)));
}
console.log(JSON.stringify(rows));
