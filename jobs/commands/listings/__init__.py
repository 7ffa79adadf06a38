"""Commands that list records, and the pages of docs/ that are generated from records."""
