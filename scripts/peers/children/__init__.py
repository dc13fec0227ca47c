"""Programs that measure one peer each; run as files, never imported."""
