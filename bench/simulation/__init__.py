"""The production Fleet and policies in virtual time, against engines that are arithmetic.

options   every knob of a run          agents, arrivals   who asks what, when
routers   one router, its waiting room  store             what several routers share
run       the loop: engines, callers, routers, and what happens to them
"""

from bench.simulation.options import SimulationOptions
from bench.simulation.run import Simulation, simulate

__all__ = ["Simulation", "SimulationOptions", "simulate"]
