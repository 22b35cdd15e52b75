// What the page draws with, of Apache ECharts: a chart or component that is not named here is not in the page.
//
//   cd tools/charts && npm install --no-save && npm run build
//
// writes taftcache/view/assets/echarts/echarts.min.js anew.
import { BarChart, CustomChart, HeatmapChart, LineChart, ScatterChart } from "echarts/charts";
import {
  BrushComponent,
  DataZoomInsideComponent,
  GridComponent,
  LegendScrollComponent,
  TooltipComponent,
  VisualMapContinuousComponent,
} from "echarts/components";
import { getInstanceByDom, init, use } from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

use([BarChart, CustomChart, HeatmapChart, LineChart, ScatterChart, CanvasRenderer]);
use([BrushComponent, DataZoomInsideComponent, GridComponent, LegendScrollComponent, TooltipComponent]);
use([VisualMapContinuousComponent]);

export { getInstanceByDom, init };
