"""Chaos, bounded: sessions over replicas that stall, die, lie and flap, clients that hang up; then a ledger.

Law: everything stays on loopback, ends by itself and follows from its seed, as far as two processes' timing allows.
"""
