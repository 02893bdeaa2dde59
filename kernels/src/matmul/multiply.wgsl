        let a$s_$i = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[of_x + $iu * 16u * PITCH + $su * 4u], PITCH);
        let b$s_$j = coopLoad<coop_mat16x16<f16, B>>(&tile_w[of_w + $ju * 16u * PITCH + $su * 4u], PITCH);
        sum_$i_$j = coopMultiplyAdd(a$s_$i, b$s_$j, sum_$i_$j);
