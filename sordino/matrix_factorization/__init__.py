"""Matrix factorisation mechanisms: strategies of correlated noise, their sensitivity and their error."""
