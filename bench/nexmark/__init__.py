"""Nexmark on Headrace: an auction house with people, auctions and bids, and eleven queries over them.

The queries are those of the Nexmark suite (0–8, 11, 12), written anew for this API; each says in one sentence what it
answers. `reference.py` answers the same with plain Python, which the tests compare.
"""
