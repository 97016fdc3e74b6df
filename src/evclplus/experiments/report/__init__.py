"""Records in, tables, figures and a page out: `folder.report`."""
