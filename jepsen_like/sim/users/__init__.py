"""Users and rules in the simulator: a model made of the log, clients with rights and without, and the check of both"""
