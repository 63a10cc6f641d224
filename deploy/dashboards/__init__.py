"""The dashboards that Grafana reads from deploy/grafana/dashboards, which this package writes."""
