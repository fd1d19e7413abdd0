"""Opens measurements that an earlier form of ClustMix has sealed."""
