"""Controller side of builds: reading and checking locks, packing source trees."""
