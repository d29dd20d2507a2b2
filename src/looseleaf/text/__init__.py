"""Text in, token ids through, text out: tokenizer, chat template, incremental detokenizer."""
