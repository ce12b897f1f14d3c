"""The protocol of turns as pure code: phases, messages, the machines of node and tenant.

Nothing in here reads a clock, a socket or a file; `wire` alone knows protobuf.
"""
