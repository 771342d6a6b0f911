"""Commands about data on disks and in object stores."""
