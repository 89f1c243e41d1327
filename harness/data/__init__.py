"""The data room: a folder of text becomes fixed blocks of token ids, and ranks read their share.

Corpus to documents (corpus), to token ids (tokenise), to blocks (pack), to a verified store on disk
(blocks, index, build), to micro-batches (order, loader). numpy only; torch never enters.
"""
