"""The retriever: documents that are near a query, over HTTP, as the tool `search` of ToolOrchestra asks for them."""
