"""Training of models that read speech or images: corpora of files, batches, runs."""
