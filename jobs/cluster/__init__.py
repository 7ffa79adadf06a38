"""Everything that is Ray's own: joining a cluster, slots, pools of workers, progress, deaths of workers."""
