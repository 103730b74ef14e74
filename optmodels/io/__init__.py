"""Files in and out: documents and tables with line numbers, atomic writing, paths into instance files."""
