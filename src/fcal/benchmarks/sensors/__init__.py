"""Real sensors whose noise is known: is it learnt, as a function of the state?"""
