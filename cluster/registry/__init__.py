"""The registry: three processes on pysyncobj that know the groups of brokers (docs/adr/0112). No other package depends
on the registry."""
