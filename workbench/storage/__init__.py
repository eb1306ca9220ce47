"""Model files: read GGUF headers, find every expert's bytes, pack experts contiguously, unpack, synthesize."""
