"""The retriever: an HTTP service that returns the documents nearest to a query, for the tool `search` of ToolOrchestra."""
