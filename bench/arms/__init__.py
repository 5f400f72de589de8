"""Policies and admission rules of others, rebuilt over our map so that a comparison is fair. Named after what they
imitate, loadable as `bench.arms.<file>:<Class>`; each says what it leaves out. Not part of the router.
"""
